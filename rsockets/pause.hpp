// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Pauses of callers that check again afterwards what they wait for: a signal may end one early, which does no harm.
#pragma once

#include <poll.h>
#include <time.h>

namespace rsockets {

inline void pause_for(const timespec& time) { ::ppoll(nullptr, 0, &time, nullptr); }

// The same, until fd is readable at the latest.
inline void pause_until_readable(int fd, int milliseconds) {
    pollfd one{fd, POLLIN, 0};
    ::poll(&one, 1, milliseconds);
}

} // namespace rsockets
