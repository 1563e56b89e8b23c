// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A program's list of buffers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>

#include <sys/uio.h>

namespace rstream {

// At most what a size_t holds: a program may pass lengths without an end.
inline size_t total_length(const iovec* iov, size_t count) {
    size_t total = 0;
    for (size_t i = 0; i < count; ++i) {
        total += std::min(iov[i].iov_len, std::numeric_limits<size_t>::max() - total);
    }
    return total;
}

} // namespace rstream
