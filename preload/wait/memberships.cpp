// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What concerns all memberships of a connection, in whatever sets.
#include "preload/wait/epoll_set.hpp"

#include <array>

#include "preload/base/system.hpp"
#include "preload/connection/stream.hpp"

namespace preload {

namespace {

void set_flag(bool& flag, bool value) { std::atomic_ref(flag).store(value); }

} // namespace

namespace {

// Calls body(set, fd) for each of a connection's memberships, without holding the list's lock: for some of them again
// if one is removed meanwhile.
template <class Body> void for_each_watch(Connection& c, Body&& body) {
    const sys::ErrnoKept kept;
    constexpr size_t at_once = 16;
    std::array<EpollSet*, at_once> sets{};
    std::array<int, at_once> fds{};
    size_t count = at_once;
    for (const Watch* last = nullptr; count == at_once;) {
        count = 0;
        {
            const LocalLock::Hold hold(membership_lock());
            const Watch* before = hold ? c.watches : nullptr;
            while (before != nullptr && before != last) {
                before = before->next_of_connection;
            }
            const Watch* next = before != nullptr ? before->next_of_connection : c.watches;
            for (; hold && next != nullptr && count < at_once; next = next->next_of_connection) {
                sets[count] = next->set;
                fds[count++] = next->fd;
                last = next;
            }
        }
        for (size_t i = 0; i < count; ++i) {
            body(*sets[i], fds[i]);
        }
    }
}

} // namespace

void watches_closing(Connection& c) {
    if (c.watched.load(std::memory_order_relaxed)) {
        for_each_watch(c, [](EpollSet& set, int) { set.update_kernel(); });
    }
}

void watches_leave_kernel(Connection& c) {
    for_each_watch(
        c, [](EpollSet& set, int fd) { sys::call(SYS_epoll_ctl, set.number.load(), EPOLL_CTL_DEL, fd, nullptr); });
}

void watches_careful(Connection& c) {
    for_each_watch(c, [](EpollSet& set, int fd) { set.convert_number(fd); });
}

void watches_refused(Connection& c) {
    for_each_watch(c, [](EpollSet& set, int fd) { set.renew_number(fd); });
}

void watches_frames_taken(const Connection& c) {
    const LocalLock::Hold hold(membership_lock());
    for (Watch* watch = hold ? c.watches : nullptr; watch != nullptr; watch = watch->next_of_connection) {
        if (std::atomic_ref(watch->armed).load()) {
            set_flag(watch->missed, true);
            watch->set->note_missed();
        }
    }
}

bool watches_asleep(const Connection& c) {
    const LocalLock::Hold hold(membership_lock());
    for (const Watch* watch = hold ? c.watches : nullptr; watch != nullptr; watch = watch->next_of_connection) {
        if (watch->set->is_asleep()) {
            return true;
        }
    }
    return false;
}

bool watches_sleep_by_frame(const Connection& c) {
    const LocalLock::Hold hold(membership_lock());
    for (const Watch* watch = hold ? c.watches : nullptr; watch != nullptr; watch = watch->next_of_connection) {
        if (watch->set->is_asleep() && !watch->set->has_wakeup()) {
            return true;
        }
    }
    return false;
}

void watches_wake(const Connection& c) {
    const LocalLock::Hold hold(membership_lock());
    for (Watch* watch = hold ? c.watches : nullptr; watch != nullptr; watch = watch->next_of_connection) {
        set_flag(watch->missed, true);
        watch->set->note_missed();
        watch->set->wake();
    }
}

void watches_read_slow(Connection& c) {
    if (c.segment.load() != nullptr && watches_asleep(c)) {
        stream::want_wakeup(c);
        if (stream::ring_has_bytes(c)) { // which came before that
            watches_wake(c);
        }
    }
}

void watches_blocked_slow(Connection& c) {
    if (c.segment.load() != nullptr && watches_asleep(c)) {
        stream::want_space(c);
        if (stream::ring_has_space(c)) {
            watches_wake(c);
        }
    }
}

bool forget_watches(Connection& c) {
    for (const Watch* last = nullptr;;) {
        EpollSet* set = nullptr;
        int fd = -1;
        {
            const LocalLock::Hold hold(membership_lock());
            if (!hold || c.watches == nullptr || c.watches == last) {
                return c.watches == nullptr;
            }
            last = c.watches;
            set = last->set;
            fd = last->fd;
        }
        if (!set->forget(fd, c)) {
            return false;
        }
    }
}

} // namespace preload
