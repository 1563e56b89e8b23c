// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What the ends of an rping tell each other, byte for byte as rdma-core's program does, and the data of a ping.
//
// A ping goes so: the client advertises where its data is, the server reads it by RDMA and says go ahead; the client
// advertises where the echo may go, the server writes it there by RDMA and says go ahead. Advertisements and go-aheads
// are messages of one form; a go-ahead's content has no meaning. Between two of our own, a client that is done sends a
// farewell, shorter than the others, so that the server can tell an end from a death.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "util/common/hello.hpp"

namespace rping {

constexpr util::Magic magic{'r', 'p', 'n', 'g'};

struct Advertisement {
    uint64_t address = 0;
    uint32_t key = 0;
    uint32_t size = 0;
    bool operator==(const Advertisement&) const = default;

    static constexpr size_t length = 16;
    // All in network order.
    [[nodiscard]] std::array<std::byte, length> encode() const;
    static Advertisement decode(std::span<const std::byte, length> bytes);
};

constexpr size_t farewell_length = 4;
// Room for a message: more than any has, so that one that is too long is seen for what it is.
constexpr size_t message_room = 256;

// The data of ping number n, counted from 0: a line of text that says the number and goes on with letters, each ping
// beginning one letter later, and a NUL.
void fill_ping(std::span<std::byte> data, uint64_t n);
// The first byte that is not as fill_ping has it, or data.size().
size_t first_difference(std::span<const std::byte> data, uint64_t n);
// The text, as far as it goes.
std::string ping_text(std::span<const std::byte> data);

} // namespace rping
