// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Waiting in a set in a signal handler that has interrupted the set's own functions. The thread itself holds the lock,
// so that nothing changes meanwhile; but the code below may be in the middle of a change. So only the members and their
// rings are read, what the kernel reports is left to the program as it is, and all members are checked afterwards.
#include "preload/wait/epoll_set.hpp"

#include <algorithm>

#include "preload/base/system.hpp"
#include "preload/connection/stream.hpp"
#include "preload/wait/wakeup.hpp"

namespace preload {

// What is in memory: rather an event too many, by edge, than one too few. to_sleep: peers send a frame from now on,
// which the kernel reports.
int EpollSet::collect_within(epoll_event* events, int max, bool to_sleep) {
    constexpr uint32_t reading = EPOLLIN | EPOLLRDNORM;
    constexpr uint32_t writing = EPOLLOUT | EPOLLWRNORM;
    int count = 0;
    for (Watch* bucket : table_) {
        for (Watch* watch = bucket; watch != nullptr && count < max; watch = watch->next) {
            Connection* c = watch->converted ? watch->connection : nullptr;
            if (c == nullptr || watch->removed || watch->disabled || c->segment.load() == nullptr) {
                continue;
            }
            std::atomic_ref(watch->missed).store(true);
            note_missed();
            const uint32_t wanted = watch->wanted.events;
            if (to_sleep) {
                stream::arm(*c, static_cast<short>(wanted & (EPOLLIN | EPOLLOUT)), path::by_frame);
            }
            const uint32_t there = (stream::ring_has_bytes(*c) ? wanted & reading : 0) |
                                   (stream::ring_has_space(*c) ? wanted & writing : 0);
            if (there != 0) {
                events[count].events = there;
                events[count].data = watch->wanted.data;
                ++count;
                watch->disabled = (wanted & EPOLLONESHOT) != 0;
            }
        }
    }
    return count;
}

// The kernel watches a converted member for more than the program does.
int EpollSet::without_unwanted(epoll_event* events, int count) const {
    constexpr uint32_t always_reported = EPOLLERR | EPOLLHUP;
    int kept = 0;
    for (int i = 0; i < count; ++i) {
        uint32_t wanted = 0;
        bool is_known = false;
        for (const Watch* watch = by_data_[bucket_of(events[i])]; watch != nullptr; watch = watch->next_of_data) {
            if (watch->wanted.data.u64 == events[i].data.u64) {
                is_known = true;
                wanted |= !watch->converted ? UINT32_MAX : watch->removed ? 0 : watch->wanted.events | always_reported;
            }
        }
        events[i].events &= is_known ? wanted : UINT32_MAX;
        if (events[i].events != 0) {
            events[kept++] = events[i];
        }
    }
    return kept;
}

int EpollSet::wait_within(int epfd, epoll_event* events, int max, int64_t timeout_ns, const sigset_t* mask) {
    const uint64_t begin = timeout_ns > 0 ? sys::now_ns() : 0;
    bool woken = false;
    int64_t left = timeout_ns;
    int result = 0;
    for (;;) {
        const int count = collect_within(events, max, left != 0);
        const int n = count < max ? ask_kernel(epfd, events + count, max - count, count != 0 ? 0 : left, mask) : 0;
        const int others = n > 0 ? without_own(events + count, n) : 0;
        woken = woken || others < n;
        const int kept = without_unwanted(events + count, others);
        result = count != 0 || n >= 0 ? count + kept : n;
        if (result != 0 || n <= 0 || left == 0) {
            break;
        }
        if (timeout_ns > 0) {
            left = std::max<int64_t>(timeout_ns - static_cast<int64_t>(sys::now_ns() - begin), 0);
        }
    }
    if (woken) { // the interrupted call must hear of that
        const sys::ErrnoKept kept;
        wakeup::wake_own(wakeup_);
    }
    return result;
}

} // namespace preload
