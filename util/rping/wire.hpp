// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The messages of rping, byte for byte as rdma-core's program sends them, and the data of a ping.
//
// A ping: the client advertises where its data is; the server reads it by RDMA and sends a go-ahead; the client
// advertises where the echo may go; the server writes it there by RDMA and sends a go-ahead. Advertisements and
// go-aheads are messages of one form; the content of a go-ahead has no meaning. Between two ends of this package, a
// client that has finished sends a farewell, shorter than the others, so that the server can distinguish a normal end
// from a failure.
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
    // All in network byte order.
    [[nodiscard]] std::array<std::byte, length> encode() const;
    static Advertisement decode(std::span<const std::byte, length> bytes);
};

constexpr size_t farewell_length = 4;
// Size of a message buffer: larger than any message, so that a message that is too long is detected.
constexpr size_t message_size = 256;

// Fills the data of ping number n, counted from 0: a line of text with the number followed by letters, each ping
// beginning one letter later, and a NUL.
void fill_ping(std::span<std::byte> data, uint64_t n);
// The first byte that differs from fill_ping, or data.size().
size_t first_difference(std::span<const std::byte> data, uint64_t n);
// The text, up to its end.
std::string ping_text(std::span<const std::byte> data);

} // namespace rping
