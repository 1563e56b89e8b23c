// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The private data that two ends of this package exchange when they connect: the size and number of messages, so that a
// mismatch is detected before any data moves. rdma-core's programs send and expect none.
//
// The length comes first because the verbs provider of libfabric puts the length of its user's private data there, and
// removes it again: so a hello reads the same with libfabric at both ends, at one, or at none.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "util/common/backend.hpp"

namespace util {

using Magic = std::array<char, 4>; // identifies the program

struct Hello {
    uint32_t size = 0;  // of a message
    uint32_t count = 0; // number of messages; 0: unlimited
    uint32_t connections = 1;
    bool operator==(const Hello&) const = default;
};

Bytes encode_hello(const Magic& magic, const Hello& hello);
// Parses a peer's private data; no value if it is not a hello of this package. Padding is ignored.
std::optional<Hello> find_hello(const Magic& magic, std::span<const std::byte> data);

} // namespace util
