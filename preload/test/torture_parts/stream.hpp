// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The stream of verified bytes: one write or read of random size by a random call. What is written is a pattern of the
// position; what is read is compared with it, so that a lost, doubled or reordered byte is found.
#pragma once

#include <cstdint>

#include "preload/test/torture_parts/random.hpp"
#include "preload/test/torture_parts/state.hpp"

namespace torture {

// The library's rspreload_path; null without the library.
extern int (*const path_of)(int);

// Bytes, or -errno. At least one byte is to be written.
long write_some(End& e, int fd, Random& random, uint64_t limit);

// Bytes, 0 at the end, or -errno.
long read_some(End& e, int fd, Random& random, int flags = 0);

// Thrown by check if the peer is gone, and its process may be killed.
struct PeerGone {
    int error; // 0: the end of the stream
};

// Fails, or throws PeerGone, unless the result is a number of bytes, or says to try again.
void check(End& e, long result, const char* what);

} // namespace torture
