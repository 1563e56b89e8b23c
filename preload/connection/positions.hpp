// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The kernel's positions of a TCP connection, whichever process moved the bytes. Measured to be exact on Linux 5.10 to
// 6.18; see tcp(7) for TCP_INFO, SIOCINQ and SIOCOUTQ.
#pragma once

#include <cstdint>

namespace preload {

struct Positions {
    uint64_t received = 0;       // bytes read from the socket
    uint64_t sent = 0;           // bytes written to it; one more on the end that connected, for its SYN
    uint64_t unacknowledged = 0; // of these: not known to be in the peer's kernel
    bool established = false;
};

// The kernel's name for the socket, which all its descriptors share (SO_COOKIE of socket(7)). 0: not available.
uint64_t cookie_of(int fd);
// False: not available, or changing all the time.
bool read_positions(int fd, Positions& out);
// Bytes that have arrived, read or not. False: not available.
bool read_arrived(int fd, uint64_t& out);

} // namespace preload
