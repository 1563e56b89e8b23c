// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What the messages of a benchmark hold. A message's sequence number is in its first and last bytes and in each page of
// it, so that bytes that are lost, doubled or moved are an error, at a cost that does not show in the figures.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

#include "util/common/failure.hpp"

namespace path_bench {

namespace stamps {

constexpr size_t width = sizeof(uint64_t);
constexpr size_t distance = 4096;

inline uint64_t value(uint64_t sequence, size_t offset) {
    return (sequence + 1) * 0x9e3779b97f4a7c15U + offset; // odd: the lowest byte alone differs from message to message
}

// Calls take(offset, length) for each stamp of a message. They do not overlap.
template <class Take> void each(size_t size, const Take& take) {
    size_t end = 0;
    for (size_t offset = 0; offset < size; offset += distance) {
        const size_t length = std::min(width, size - offset);
        take(offset, length);
        end = offset + length;
    }
    const size_t last = std::max(end, size - std::min(size, width));
    if (last < size) {
        take(last, size - last);
    }
}

} // namespace stamps

inline void stamp(std::span<char> message, uint64_t sequence) {
    stamps::each(message.size(), [&](size_t offset, size_t length) {
        const uint64_t value = stamps::value(sequence, offset);
        memcpy(message.data() + offset, &value, length);
    });
}

inline void verify(std::span<const char> message, uint64_t sequence) {
    stamps::each(message.size(), [&](size_t offset, size_t length) {
        const uint64_t value = stamps::value(sequence, offset);
        if (memcmp(message.data() + offset, &value, length) != 0) {
            util::fail("wrong bytes in message {}, at byte {} of {}", sequence, offset, message.size());
        }
    });
}

} // namespace path_bench
