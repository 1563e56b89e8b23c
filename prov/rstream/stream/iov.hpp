// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A program's list of buffers.
#pragma once

#include <cstddef>

#include <sys/uio.h>

namespace rstream {

inline size_t total_length(const iovec* iov, size_t count) {
    size_t total = 0;
    for (size_t i = 0; i < count; ++i) {
        total += iov[i].iov_len;
    }
    return total;
}

} // namespace rstream
