// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/streaming/greeting.hpp"

#include <algorithm>
#include <cstring>

#include <endian.h>
#include <fmt/format.h>

namespace streaming {

namespace {

constexpr std::array magic{'s', 't', 'r', 'm'};
constexpr size_t numbers = (sizeof(Greeting) - sizeof(magic)) / sizeof(uint32_t);
static_assert(max_size <= UINT32_MAX && max_count <= UINT32_MAX);

} // namespace

Greeting greet(const Test& test) {
    const uint32_t words[numbers] = {htobe32(static_cast<uint32_t>(test.size)),
                                     htobe32(static_cast<uint32_t>(test.transfers)),
                                     htobe32(static_cast<uint32_t>(test.iterations))};
    Greeting bytes;
    memcpy(bytes.data(), magic.data(), sizeof(magic));
    memcpy(bytes.data() + sizeof(magic), words, sizeof(words));
    return bytes;
}

std::string disagreement(const Greeting& theirs, const Test& ours) {
    if (theirs == greet(ours)) {
        return {};
    }
    if (memcmp(theirs.data(), magic.data(), sizeof(magic)) == 0) {
        uint32_t words[numbers];
        memcpy(words, theirs.data() + sizeof(magic), sizeof(words));
        return fmt::format(
            "the peer runs with -S {} -C {} -I {}, this end with -S {} -C {} -I {}; they must be the same",
            be32toh(words[0]), be32toh(words[1]), be32toh(words[2]), ours.size, ours.transfers, ours.iterations);
    }
    return {};
}

} // namespace streaming
