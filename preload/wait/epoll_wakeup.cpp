// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A set's own wake-up descriptor: an eventfd that is its member, edge-triggered, so that it need not be read. Peers
// write it instead of sending a frame; those of other users write to a pipe beside it. It does not identify a member:
// all members whose peers have its id are checked, which are few, those that became idle last.
#include "preload/wait/epoll_set.hpp"

#include <algorithm>
#include <utility>

#include "preload/base/system.hpp"
#include "preload/connection/stream.hpp"
#include "preload/wait/wakeup.hpp"

namespace preload {

namespace {

// epoll data of the library's own members: addresses that no program uses. The same in children.
char own_mark;
char pipe_mark;

} // namespace

namespace {

bool is_own(const epoll_event& event) { return event.data.ptr == &own_mark || event.data.ptr == &pipe_mark; }

} // namespace

bool EpollSet::has_own(const epoll_event* events, int count) { return std::any_of(events, events + count, is_own); }

int EpollSet::without_own(epoll_event* events, int count) {
    const epoll_event* end = std::remove_if(events, events + count, is_own);
    return static_cast<int>(end - events);
}

// In a signal handler, which cannot process them: wakes the interrupted call again.
int EpollSet::put_back_own(epoll_event* events, int count) const {
    const int left = without_own(events, count);
    if (left != count) {
        wakeup::wake_own(wakeup_);
    }
    return left;
}

// With the lock.
uint64_t EpollSet::sleeper_for(const Connection& c) {
    const uint64_t id = sleeper();
    if (id == path::by_frame || c.same_user.load(std::memory_order_relaxed)) {
        return id;
    }
    if (pipe_ == Pipe::none) {
        epoll_event event{};
        event.events = EPOLLIN | EPOLLET; // a child that has the set, too, cannot drain it
        event.data.ptr = &pipe_mark;
        const int fd = wakeup::pipe_reader(id);
        const bool added = fd >= 0 && sys::call(SYS_epoll_ctl, number.load(), EPOLL_CTL_ADD, fd, &event) == 0;
        pipe_ = added ? Pipe::member : Pipe::impossible;
    }
    return pipe_ == Pipe::member ? id : uint64_t{path::by_frame};
}

// With the lock.
uint64_t EpollSet::sleeper() {
    if (wakeup_ == 0 && !wakeup_is_past_) {
        wakeup_ = wakeup::acquire();
        epoll_event event{};
        event.events = EPOLLIN | EPOLLET;
        event.data.ptr = &own_mark;
        if (wakeup_ != 0 &&
            sys::call(SYS_epoll_ctl, number.load(), EPOLL_CTL_ADD, wakeup::descriptor(wakeup_), &event) != 0) {
            wakeup::release(wakeup_);
            wakeup_ = 0;
        }
        wakeup_is_past_ = wakeup_ == 0;
        converted_.fetch_add(wakeup_ != 0 ? 1 : 0); // so that the kernel's events are sifted
    }
    return has_wakeup() ? wakeup_.load() : uint64_t{path::by_frame};
}

// With the lock. If reported_ is full, replaces the member that has been idle longest.
void EpollSet::note_reported(Watch& watch) {
    if (wakeup_ == 0 || watch.reported_at != 0 || watch.connection == nullptr) {
        return;
    }
    uint32_t at = next_reported_ % max_reported;
    while (reported_count_ < max_reported && reported_[at] != nullptr) {
        at = (at + 1) % max_reported;
    }
    next_reported_ = at + 1;
    if (Watch* oldest = reported_[at]; oldest != nullptr) {
        oldest->reported_at = 0;
        --reported_count_;
        if (!stream::withdraw(*oldest->connection, static_cast<short>(oldest->wanted.events), wakeup_)) {
            std::atomic_ref(oldest->missed).store(true); // its peer is writing the descriptor
            note_missed();
        }
    }
    reported_[at] = &watch;
    watch.reported_at = at + 1;
    ++reported_count_;
}

// With the lock.
void EpollSet::forget_reported(Watch& watch) {
    if (watch.reported_at != 0) {
        reported_[watch.reported_at - 1] = nullptr;
        watch.reported_at = 0;
        --reported_count_;
    }
}

// With the lock: the descriptor was written, or is about to be.
void EpollSet::activate_woken() {
    wakeup::clear(wakeup_);
    for (Watch* watch : reported_) {
        if (watch != nullptr &&
            !stream::is_armed(*watch->connection, static_cast<short>(watch->wanted.events), wakeup_)) {
            forget_reported(*watch);
            activate(*watch);
        }
    }
}

int EpollSet::take_own_events(epoll_event* events, int count) {
    // Before memory is checked: what is sent from now on causes another event.
    const auto has = [&](const void* mark) {
        return std::any_of(events, events + count, [&](const epoll_event& one) { return one.data.ptr == mark; });
    };
    // On own_mark, too: a signal handler that receives a pipe event cannot drain it, see put_back_own().
    if (pipe_ == Pipe::member && (has(&own_mark) || has(&pipe_mark))) {
        wakeup::drain(wakeup_);
    }
    const int left = without_own(events, count);
    if (left != count) {
        activate_woken();
    }
    return left;
}

// With the lock. True: members that were idle must be checked.
bool EpollSet::take_notice() {
    if (wakeup_ == 0 || !wakeup::is_notified(wakeup_)) {
        return false;
    }
    activate_woken();
    return active_ != nullptr;
}

void EpollSet::wake() const {
    if (const uint64_t id = wakeup_.load(); id != 0) {
        wakeup::wake_own(id); // if another waiter has the id by now, its wake-up is spurious
    }
}

void EpollSet::wake_another() {
    if (active_ != nullptr && wakeup_ != 0 && is_asleep()) {
        wakeup::wake_own(wakeup_);
    }
}

void EpollSet::leave_wakeup() {
    const LocalLock::Hold hold(lock_);
    if (hold) {
        give_up_wakeup();
    }
}

void EpollSet::give_up_wakeup() {
    wakeup_is_past_ = true;
    if (wakeup_ == 0) {
        return;
    }
    for (Watch* watch : reported_) {
        if (watch == nullptr) {
            continue;
        }
        forget_reported(*watch);
        if (!stream::withdraw(*watch->connection, static_cast<short>(watch->wanted.events), wakeup_)) {
            stream::wake_again(*watch->connection);
        }
    }
    sys::call(SYS_epoll_ctl, number.load(), EPOLL_CTL_DEL, wakeup::descriptor(wakeup_), nullptr);
    if (std::exchange(pipe_, Pipe::none) == Pipe::member) {
        sys::call(SYS_epoll_ctl, number.load(), EPOLL_CTL_DEL, wakeup::pipe_reader(wakeup_), nullptr);
    }
    wakeup::release(wakeup_);
    wakeup_ = 0;
    converted_.fetch_sub(1);
}

// The child may never wait in it.
void EpollSet::after_fork_in_parent() {
    const LocalLock::Hold hold(lock_);
    if (hold && !is_inherited_ && !is_several()) {
        wakeup_is_past_ = false;
    }
}

// In the child. The parent gave up its wake-up before, unless the fork was in a handler that interrupted this set's
// functions.
void EpollSet::after_fork() {
    lock_.forget();
    wakeup_is_past_ = true;
    is_inherited_ = true;
    if (!Asleep::is_interrupted() && stream::own_sleeps == 0) { // else this thread goes on as one of them
        sleepers_ = 0;
    }
    if (wakeup_ != 0) {
        wakeup_ = 0;
        pipe_ = Pipe::none;
        for (Watch* watch : reported_) {
            if (watch != nullptr) {
                forget_reported(*watch);
                activate(*watch);
            }
        }
    }
}

void EpollSet::drain_wakeup() {
    pollfd one{wakeup::descriptor(wakeup_), POLLIN, 0};
    if (wakeup_ != 0 && sys::poll(&one, 1, 0) > 0) {
        uint64_t count = 0;
        sys::call(SYS_read, one.fd, &count, sizeof(count));
        activate_woken();
    }
    one.fd = wakeup_ != 0 && pipe_ == Pipe::member ? wakeup::pipe_reader(wakeup_) : -1;
    if (one.fd >= 0 && sys::poll(&one, 1, 0) > 0) {
        wakeup::drain(wakeup_);
        activate_woken();
    }
}

} // namespace preload
