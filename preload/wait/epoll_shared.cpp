// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A set in which several processes wait, since it existed before a fork. The kernel reports an event of an
// edge-triggered member to one of them only, perhaps to one that has closed the connection. So the kernel alone handles
// such a set: each process hands over the connections that it has in it.
#include "preload/wait/epoll_set.hpp"

#include <new>

#include <sys/mman.h>

#include "preload/base/system.hpp"
#include "preload/connection/gate.hpp"
#include "preload/connection/stream.hpp"
#include "preload/rendezvous/service.hpp"

namespace preload {

// In memory that children share.
struct SharedSet {
    std::atomic<uint64_t> waiter{0}; // the service of the process that was the first to wait in it
    std::atomic<bool> several{false};
};

namespace {

constexpr size_t chunk_bytes = 4096;
constinit LocalLock chunk_lock;
constinit SharedSet* chunk = nullptr;
constinit size_t chunk_used = 0;

// Never reused: a child may have it for longer than this process.
SharedSet* new_shared() {
    const LocalLock::Hold hold(chunk_lock);
    if (!hold) {
        return nullptr;
    }
    if (chunk == nullptr || chunk_used == chunk_bytes / sizeof(SharedSet)) {
        void* got = mmap(nullptr, chunk_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (got == MAP_FAILED) {
            return nullptr;
        }
        chunk = static_cast<SharedSet*>(got);
        chunk_used = 0;
    }
    return new (static_cast<void*>(&chunk[chunk_used++])) SharedSet;
}

} // namespace

void shared_sets_after_fork() {
    chunk_lock.forget();
    chunk = nullptr;
    chunk_used = 0;
}

bool EpollSet::is_several() const {
    const SharedSet* shared = shared_.load(std::memory_order_relaxed);
    return shared != nullptr && shared->several.load(std::memory_order_relaxed);
}

void EpollSet::share() {
    if (shared_.load() == nullptr) {
        shared_ = new_shared();
    }
    SharedSet* shared = shared_.load();
    uint64_t nobody = 0;
    if (shared != nullptr && is_asleep()) { // another thread waits in it while this one forks
        shared->waiter.compare_exchange_strong(nobody, service::promised_name());
    }
}

void EpollSet::note_waiter_slow() {
    SharedSet& shared = *shared_.load();
    const uint64_t own = service::promised_name();
    uint64_t first = shared.waiter.load();
    if (first == own || (first == 0 && shared.waiter.compare_exchange_strong(first, own))) {
        return;
    }
    if (!shared.several.exchange(true)) {
        const sys::ErrnoKept kept;
        service::announce_shared_set(first);
    }
}

// Called by the service, while threads of the program may sleep in the set: members are level-triggered from now on, so
// that events stay pending until the thread that waits hands the connections over.
void EpollSet::note_several() {
    const LocalLock::Hold hold(lock_);
    if (!hold || !is_several()) {
        return;
    }
    give_up_wakeup();
    for (Watch* bucket : table_) {
        for (Watch* watch = bucket; watch != nullptr; watch = watch->next) {
            // Not one that the other process has handed over meanwhile: that one has restored its events.
            if (!watch->converted || watch->connection == nullptr || watch->removed ||
                !gate::is_careful(*watch->connection)) {
                continue;
            }
            change_in_kernel(*watch, EPOLLIN | EPOLLRDHUP | EPOLLPRI);
            if (!gate::is_careful(*watch->connection)) { // just now, perhaps before this change
                change_in_kernel(*watch, watch->disabled ? uint32_t{EPOLLONESHOT} : watch->wanted.events);
            }
        }
    }
}

// With the lock. events: what the kernel watches the member for. EPOLLEXCLUSIVE cannot be modified, and allows few
// others.
bool EpollSet::change_in_kernel(Watch& watch, uint32_t events) {
    epoll_event event = watch.wanted;
    event.events = events;
    bool is_member = true;
    if (((watch.wanted.events | watch.kernel_events) & EPOLLEXCLUSIVE) != 0) {
        event.events &= EPOLLIN | EPOLLOUT | EPOLLET | EPOLLWAKEUP;
        event.events |= EPOLLEXCLUSIVE;
        is_member = sys::call(SYS_epoll_ctl, number.load(), EPOLL_CTL_DEL, watch.fd, nullptr) != -ENOENT;
        if (is_member) {
            sys::call(SYS_epoll_ctl, number.load(), EPOLL_CTL_ADD, watch.fd, &event);
        }
    } else {
        is_member = sys::call(SYS_epoll_ctl, number.load(), EPOLL_CTL_MOD, watch.fd, &event) != -ENOENT;
    }
    watch.kernel_events = event.events;
    return is_member;
}

void EpollSet::leave_to_kernel() {
    const sys::ErrnoKept kept;
    for (;;) {
        Connection* c = nullptr;
        int fd = -1;
        {
            const LocalLock::Hold hold(lock_);
            if (!hold) {
                return; // in a signal handler: the interrupted call does it
            }
            give_up_wakeup();
            flush_removed();
            for (Watch* bucket : table_) {
                for (Watch* watch = bucket; watch != nullptr && c == nullptr; watch = watch->next) {
                    c = watch->connection;
                    fd = watch->fd;
                }
            }
        }
        if (c == nullptr) {
            return;
        }
        stream::hand_over(*c, c->fd.load(), Reason::shared_set);
        const LocalLock::Hold hold(lock_);
        Watch* watch = hold ? find(fd) : nullptr;
        if (watch == nullptr || watch->connection != c) {
            continue;
        }
        if (watch->converted) { // also reports what the kernel has received meanwhile
            change_in_kernel(*watch, watch->disabled ? uint32_t{EPOLLONESHOT} : watch->wanted.events);
        }
        remove(watch);
    }
}

bool watched_by_several(const Connection& c) {
    const LocalLock::Hold hold(membership_lock());
    for (const Watch* watch = hold ? c.watches : nullptr; watch != nullptr; watch = watch->next_of_connection) {
        if (watch->set->is_several()) {
            return true;
        }
    }
    return false;
}

} // namespace preload
