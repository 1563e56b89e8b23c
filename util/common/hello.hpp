// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What two ends that are both ours tell each other in the private data of their connection: the size and number of
// messages, so that ends which differ find out before any data moves. rdma-core's programs say and expect nothing.
//
// The length comes first because the verbs provider of libfabric puts the length of its user's private data there, and
// takes it off again: so a hello reads the same with libfabric at both ends, at one, or at none.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "util/common/backend.hpp"

namespace util {

using Magic = std::array<char, 4>; // of the program

struct Hello {
    uint32_t size = 0;  // of a message
    uint32_t count = 0; // of messages; 0: without end
    uint32_t connections = 1;
    bool operator==(const Hello&) const = default;
};

Bytes encode_hello(const Magic& magic, const Hello& hello);
// What a peer's private data says; nothing if it is not one of ours. Padding is ignored.
std::optional<Hello> find_hello(const Magic& magic, std::span<const std::byte> data);

} // namespace util
