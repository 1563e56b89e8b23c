// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The bytes that tests send: each depends on its position in the stream, so that a lost, duplicated or misplaced byte
// is detected. The period is not a multiple of any buffer size.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fabtests {

inline char pattern_at(uint64_t position) {
    return static_cast<char>((position * 31 + position / 251 * 17 + position / 65521) & 0xff);
}

inline void fill(char* data, size_t length, uint64_t position) {
    for (size_t i = 0; i < length; ++i) {
        data[i] = pattern_at(position + i);
    }
}

inline bool matches(const char* data, size_t length, uint64_t position) {
    for (size_t i = 0; i < length; ++i) {
        if (data[i] != pattern_at(position + i)) {
            return false;
        }
    }
    return true;
}

} // namespace fabtests
