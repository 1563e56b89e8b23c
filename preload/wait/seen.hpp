// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Whether the library sees how the program waits for a connection. Some runtimes move bytes by libc's calls, but wait
// by system calls of their own (Bun; programs in Rust that use rustix), which would miss bytes in memory without end.
// So a connection that does not block is upgraded only after a call of libc's has waited for it, or when the program
// does not wait, but tries again and again.
#pragma once

#include <cstdint>

#include <poll.h>

#include "preload/connection/connection.hpp"

namespace preload::wait {

// poll(2) or select(2) is about to wait for it. What a connecting socket is polled for, space, tells nothing yet.
inline void note_polled(Connection& c, short events) {
    constexpr int in = POLLIN | POLLRDNORM;
    constexpr int any = in | POLLOUT | POLLWRNORM;
    if ((events & (c.used.load(std::memory_order_relaxed) ? any : in)) != 0 &&
        !c.polled.load(std::memory_order_relaxed)) {
        c.polled.store(true, std::memory_order_relaxed);
    }
}

// So many calls in a row that fail with EAGAIN are not behind a wait: it would have found something now and then.
inline constexpr uint32_t tries_without_wait = 64;

// A call has failed with EAGAIN.
inline void note_refused(Connection& c) {
    if (const uint32_t tries = c.refusals.load(std::memory_order_relaxed); tries < tries_without_wait) {
        c.refusals.store(tries + 1, std::memory_order_relaxed);
    }
}
// A call has moved bytes.
inline void note_moved(Connection& c) {
    const uint32_t tries = c.refusals.load(std::memory_order_relaxed);
    if (tries != 0 && tries < tries_without_wait) {
        c.refusals.store(0, std::memory_order_relaxed);
    }
}

// flags: of the call that has just moved bytes, MSG_DONTWAIT among them.
bool is_seen(const Connection& c, int flags);

} // namespace preload::wait
