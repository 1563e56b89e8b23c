// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A wait that signals end as they end a blocking send(2): behind a handler with SA_RESTART, the kernel goes on with
// that, while poll(2) always fails with EINTR (signal(7)).
#pragma once

#include <poll.h>

namespace preload {

// Waits in poll(2), for that long; without a limit if negative. A cancellation point; undo() is called if the thread is
// cancelled in it. Returns as poll(2), with errno; 0: look again, and wait again: if a handler has run, it has
// SA_RESTART. Takes some ten microseconds.
int poll_restarted(pollfd& one, int timeout_ms, void (*undo)(void*), void* argument);

} // namespace preload
