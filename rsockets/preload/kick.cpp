// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/preload/kick.hpp"

#include <algorithm>
#include <cerrno>

#include <sched.h>

#include "rsockets/preload/carrier.hpp"
#include "rsockets/preload/lock.hpp"
#include "rsockets/preload/wait.hpp"

namespace preload::kick {

namespace {

// An address of ours: no data that a program gives can mean the same object.
const char mark = 0;

// With the change of numbers locked.
void take_away(Entry& entry) {
    if (const int fd = entry.kick.exchange(-1); fd >= 0) {
        (void)real::epoll_ctl(entry.kernel.load(), EPOLL_CTL_DEL, fd, nullptr);
        table::remove(fd);
        real::close(fd);
    }
}

// What a waiter needs to be gone, once it is woken, many times over. It may be within a signal handler.
constexpr long longest_wait = 10000000; // nanoseconds

} // namespace

void wake(Entry& entry, int kernel) {
    if (entry.waiters.fetch_add(0) == 0) { // a change: who waits from now on has seen that the set is another
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
    const timespec limit{0, longest_wait};
    TimeLeft time(&limit);
    for (const timespec* left = time.left(); entry.waiters.load() != 0 && left->tv_nsec != 0; left = time.left()) {
        sched_yield();
    }
    if (entry.waiters.load() == 0) { // they have gone without having seen it
        take_away(entry);
    }
}

Waiting::~Waiting() {
    if (entry_.waiters.fetch_sub(1) != 1 || entry_.kick.load() < 0) {
        return;
    }
    const int saved = errno;
    const Changing changing;
    take_away(entry_);
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
