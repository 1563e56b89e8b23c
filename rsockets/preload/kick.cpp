// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/preload/kick.hpp"

#include <algorithm>
#include <cerrno>

#include "rsockets/preload/carrier.hpp"
#include "rsockets/preload/lock.hpp"

namespace preload::kick {

namespace {

// An address of ours: no data that a program gives can mean the same object.
const char mark = 0;

} // namespace

void wake(Entry& entry, int kernel) {
    if (entry.waiters.load() == 0) {
        return;
    }
    const int made = real::eventfd(1, EFD_CLOEXEC);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = const_cast<char*>(&mark);
    if (made >= 0) {
        entry.kick.store(move_away(made));
        (void)real::epoll_ctl(kernel, EPOLL_CTL_ADD, entry.kick.load(), &event);
    }
}

Waiting::~Waiting() {
    if (entry_.waiters.fetch_sub(1) != 1 || entry_.kick.load() < 0) {
        return;
    }
    const int saved = errno;
    const Changing changing;
    if (const int fd = entry_.kick.exchange(-1); fd >= 0) {
        (void)real::epoll_ctl(entry_.kernel.load(), EPOLL_CTL_DEL, fd, nullptr);
        table::remove(fd);
        real::close(fd);
    }
    errno = saved;
}

int without_kicks(epoll_event* events, int count) {
    if (count <= 0) {
        return count;
    }
    const auto* end =
        std::remove_if(events, events + count, [](const epoll_event& event) { return event.data.ptr == &mark; });
    return static_cast<int>(end - events);
}

} // namespace preload::kick
