// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Sets within sets: the library checks the members of a nested set when the set around it is checked, and a thread that
// sleeps in a set sleeps in all that are nested in it.
#include "preload/wait/epoll_set.hpp"

#include <algorithm>

#include <poll.h>

#include "preload/base/system.hpp"

namespace preload {

// False: the lock cannot be taken.
bool EpollSet::remove_nested(const EpollSet& inner, bool waits) {
    const LocalLock::Hold hold(lock_, waits);
    if (!hold || nested_ == 0) {
        return static_cast<bool>(hold);
    }
    for (Watch* bucket : table_) {
        for (Watch* watch = bucket; watch != nullptr;) {
            Watch* next = watch->next;
            if (watch->inner == &inner) {
                remove(watch);
            }
            watch = next;
        }
    }
    return true;
}

// With the lock: adds the nested sets, recursively. Returns how many.
size_t EpollSet::add_nested(std::span<EpollSet*> sets) {
    size_t count = 0;
    if (nested_ == 0) [[likely]] {
        return 0;
    }
    for (Watch* bucket : table_) {
        for (Watch* watch = bucket; watch != nullptr && count < sets.size(); watch = watch->next) {
            if (EpollSet* inner = watch->inner; inner != nullptr && inner != this) {
                sets[count++] = inner;
                const LocalLock::Hold hold(inner->lock_);
                count += hold ? inner->add_nested(sets.subspan(count)) : 0;
            }
        }
    }
    return count;
}

void EpollSet::note_waited_slow() {
    waited_ = true; // first: a nested set that is added from now on is told by add()
    const LocalLock::Hold hold(lock_);
    if (!hold) {
        waited_ = false; // a signal handler: the next call tells them
        return;
    }
    for (Watch* bucket : table_) {
        for (Watch* watch = nested_ != 0 ? bucket : nullptr; watch != nullptr; watch = watch->next) {
            if (watch->inner != nullptr && watch->inner != this) {
                watch->inner->note_waited();
            }
        }
    }
}

namespace {

constinit thread_local size_t own_sleeps = 0;

} // namespace

EpollSet::Asleep::Asleep(EpollSet& set) {
    sets_[count_++] = &set;
    count_ += set.has_careful() ? set.add_nested(std::span(sets_).subspan(1)) : 0;
    for (size_t i = 0; i < count_; ++i) {
        sets_[i]->sleepers_.fetch_add(1);
    }
    own_sleeps += count_;
}

void EpollSet::Asleep::end() {
    for (size_t i = 0; i < count_; ++i) {
        sets_[i]->sleepers_.fetch_sub(1);
    }
    own_sleeps -= count_;
    count_ = 0;
}

bool EpollSet::Asleep::is_interrupted() { return own_sleeps != 0; }

bool EpollSet::Asleep::any_missed() const {
    return std::any_of(sets_.begin(), sets_.begin() + count_, [](const EpollSet* set) { return set->missed_.load(); });
}

// By edge: if something has arrived since the last report, or the kernel reports a member whose bytes it moves. An
// event too many is better than one too few.
bool EpollSet::check_nested(Watch& watch, bool to_sleep, uint32_t& events) {
    EpollSet& inner = *watch.inner;
    if (watch.disabled || watch.removed || inner.is_closed()) {
        return false;
    }
    const bool edge = (watch.wanted.events & EPOLLET) != 0;
    uint64_t now =
        edge ? inner.progress() : 0; // before the check: what comes meanwhile is reported now or the next time
    bool soon = false;
    const bool in_memory = inner.ready(to_sleep, soon);
    // The event that the kernel reported may have been consumed by now.
    pollfd one{watch.fd, POLLIN, 0};
    const bool in_kernel =
        watch.kernel_in && (!in_memory || inner.has_others()) && sys::poll(&one, 1, 0) > 0 && one.revents == POLLIN;
    watch.kernel_in = false;
    const bool there = in_memory || in_kernel;
    soon_ = soon_ || (!there && soon);
    bool fresh = !edge || in_kernel || watch.seen_ended == 0 || now != watch.seen_arrived;
    if (there && !fresh && to_sleep) {
        inner.arm_active(); // ready() arms only those that have nothing
        const uint64_t armed = inner.progress();
        fresh = armed != now;
        now = armed;
    }
    if (!there || fresh) {
        watch.seen_arrived = now;
        watch.seen_ended = there ? 1 : 0;
    }
    events = there && fresh ? EPOLLIN & watch.wanted.events : 0;
    return events != 0;
}

} // namespace preload
