// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/wait/seen.hpp"

#include <fcntl.h>
#include <sys/socket.h>

#include "preload/base/system.hpp"
#include "preload/wait/epoll_set.hpp"

namespace preload::wait {

namespace {

bool blocks(int fd) {
    const long flags = sys::call(SYS_fcntl, fd, F_GETFL, 0);
    return flags >= 0 && (flags & O_NONBLOCK) == 0;
}

bool is_in_waited_set(const Connection& c) {
    if (!c.watched.load(std::memory_order_relaxed)) {
        return false;
    }
    const LocalLock::Hold hold(membership_lock());
    for (const Watch* watch = hold ? c.watches : nullptr; watch != nullptr; watch = watch->next_of_connection) {
        if (watch->set->was_waited()) {
            return true;
        }
    }
    return false;
}

} // namespace

bool is_seen(const Connection& c, int flags) {
    return c.polled.load(std::memory_order_relaxed) ||
           c.refusals.load(std::memory_order_relaxed) >= tries_without_wait || is_in_waited_set(c) ||
           ((flags & MSG_DONTWAIT) == 0 && blocks(c.fd.load()));
}

} // namespace preload::wait
