// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The positions of a TCP connection as the kernel knows them, whoever moved the bytes. Measured to be exact on
// Linux 5.10 to 6.18; see tcp(7) for TCP_INFO, SIOCINQ and SIOCOUTQ.
#pragma once

#include <cstdint>

namespace preload {

struct Positions {
    uint64_t received = 0;       // bytes that were read from the socket
    uint64_t sent = 0;           // bytes that were written to it; one more on the end that connected, for its SYN
    uint64_t unacknowledged = 0; // of them: whether the peer's kernel has these is not known
    bool established = false;
};

// False: the socket does not say, or goes on moving while it is asked.
bool read_positions(int fd, Positions& out);
// Bytes that have come, read or not. False: the socket does not say.
bool read_arrived(int fd, uint64_t& out);

} // namespace preload
