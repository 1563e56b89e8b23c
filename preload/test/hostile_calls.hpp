// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A server in one thread that makes calls which never block, and measures them; and the peer that tries to make them
// wait.
#pragma once

#include <cstdint>

#include <sys/socket.h>

#include "preload/path/segment.hpp"

namespace hostile {

// What the peer does while the server makes a call; the peer sends the letter of the call as its last byte.
enum class Holds : char {
    taken_shutdown = 's', // says that it has taken bytes which must be sent again, and never asks for them
    taken_splice = 'p',   // the same
    halted_close = 'h',   // asks to stop at a position, and for nothing else
    resent_close = 'r',   // asks for more bytes than TCP takes, and does not read
    waited_close = 'w',   // the same, and reads within the server's SO_LINGER timeout
    late_close = 'l',     // the same, and reads after that
    both_close = 'b',     // the same, and counts frames that it sends before it reads
    shutdowns = 't',      // the same; shutdown(SHUT_RDWR) follows shutdown(SHUT_WR)
    frames_close = 'c',   // counts frames that it does not send
};

// Serves that many connections, one after the other. 1: most of the calls were slow. file: its port is written there.
int calls(const char* file, unsigned connections);

// The peer's part, behind the agreement on the segment, by which the victim writes direction 0. sent: bytes by TCP.
// False: it was reset, or lost bytes.
bool hold(Holds how, int tcp, preload::path::Segment& segment, uint64_t sent);

} // namespace hostile
