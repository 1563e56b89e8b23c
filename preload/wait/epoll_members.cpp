// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The members of a set, as epoll_ctl adds, changes and removes them, and as their connections change.
#include "preload/wait/epoll_set.hpp"

#include <new>
#include <utility>

#include <sys/mman.h>

#include "preload/base/system.hpp"
#include "preload/connection/gate.hpp"
#include "preload/connection/stream.hpp"
#include "preload/connection/table.hpp"
#include "preload/wait/one_shot.hpp"
#include "preload/wait/wakeup.hpp"

namespace preload {

namespace {

// Never freed, only reused, as connections are.
constinit LocalLock pool_lock;
constinit Watch* unused_watches = nullptr;
constinit EpollSet* unused_sets = nullptr;
// Closed, but some lists still have them: see EpollSet::leave.
constinit std::atomic<EpollSet*> unfinished_sets{nullptr};
constinit std::atomic<uint32_t> nested_watches{0}; // of all sets
// Guards Connection::watches.
constinit LocalLock list_lock;

// What the kernel watches a member of a set of several processes for, until it is handed over.
constexpr uint32_t reported_to_all = EPOLLIN | EPOLLRDHUP | EPOLLPRI;

void* memory(size_t size) {
    void* got = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return got != MAP_FAILED ? got : nullptr;
}

Watch* new_watch() {
    constexpr size_t at_once = 256;
    const LocalLock::Hold hold(pool_lock);
    if (!hold) {
        return nullptr;
    }
    if (unused_watches == nullptr) {
        auto* made = static_cast<Watch*>(memory(at_once * sizeof(Watch)));
        for (size_t i = 0; made != nullptr && i < at_once; ++i) {
            made[i].next = unused_watches;
            unused_watches = &made[i];
        }
    }
    Watch* got = unused_watches;
    if (got != nullptr) {
        unused_watches = got->next;
    }
    return got;
}

void free_watch(Watch* watch) {
    // Else a signal handler has interrupted the owner, and the place is lost.
    if (const LocalLock::Hold hold(pool_lock); hold) {
        watch->next = unused_watches;
        unused_watches = watch;
    }
}

// Whether this is no signal handler that has interrupted code which holds the lists of all sets: they must not change
// below it, and neither may a set.
bool may_change_lists() { return !list_lock.is_interrupted() && !pool_lock.is_interrupted(); }

// Finds its connection with the lock: another thread that closes the fd takes it out of the table first, and then looks
// for the connection's memberships. Either that thread finds this one, or there is no connection any more.
void link(Watch& watch) {
    const LocalLock::Hold hold(list_lock);
    watch.connection = table::connection(watch.fd);
    if (watch.connection != nullptr) {
        watch.next_of_connection = watch.connection->watches;
        watch.connection->watches = &watch;
        watch.connection->watched = true;
    }
}

void unlink(Watch& watch) {
    const LocalLock::Hold hold(list_lock);
    if (watch.connection == nullptr) {
        return;
    }
    for (Watch** at = &watch.connection->watches; *at != nullptr; at = &(*at)->next_of_connection) {
        if (*at == &watch) {
            *at = watch.next_of_connection;
            watch.connection->watched = watch.connection->watches != nullptr;
            return;
        }
    }
}

// What the kernel watches a converted member for, edge-triggered: frames, EOF, and perhaps space.
uint32_t kernel_events_of(uint32_t wanted) {
    return EPOLLIN | EPOLLRDHUP | EPOLLPRI | EPOLLET | (wanted & (EPOLLOUT | EPOLLWAKEUP));
}

} // namespace

EpollSet* EpollSet::take_unused() {
    const LocalLock::Hold hold(pool_lock);
    // Skips a set in which a thread still sleeps, since another thread closed it.
    EpollSet** at = &unused_sets;
    while (hold && *at != nullptr && (*at)->is_asleep()) {
        at = &(*at)->next_unused_;
    }
    EpollSet* set = hold ? *at : nullptr;
    if (set != nullptr) {
        *at = set->next_unused_;
    }
    return set;
}

EpollSet* EpollSet::make(int epfd) {
    finish_closed();
    EpollSet* set = take_unused();
    if (set == nullptr) {
        void* place = memory(sizeof(EpollSet));
        set = place != nullptr ? new (place) EpollSet : nullptr;
    }
    if (set == nullptr) {
        return nullptr;
    }
    // A thread may look for a member in the set that was closed, see for_each_watch(): the lock stays as it is.
    const LocalLock::Hold hold(set->lock_);
    if (!hold) {
        return nullptr; // a signal handler has interrupted that thread, and the place is lost
    }
    set->renew(epfd);
    return set;
}

// With the lock. leave() has removed the members.
void EpollSet::renew(int epfd) {
    number = epfd;
    numbers_ = 1;
    wakeup_is_past_ = false;
    is_inherited_ = false;
    shared_ = nullptr;
    next_reported_ = 0;
    converted_ = 0;
    others_ = false;
    waited_ = false;
    by_level_ = false;
    soon_ = false;
    missed_ = false;
    max_reached_ = false;
    asked_kernel_ns_ = 0;
}

void EpollSet::drop_number() {
    if (numbers_.fetch_sub(1) != 1) {
        if (table::set(number) != this) { // a duplicate keeps the set
            table::for_each_set([&](int fd, EpollSet& set) { number = &set == this ? fd : number.load(); });
        }
    } else if (!leave(true)) {
        number = -1; // which may be another set's by then
        finish_later();
    }
}

// Leaves the sets that contain it, and its members. False: a signal handler closes it that has interrupted a section of
// it, or of another set. It counts as closed, and is not reused until the rest is done.
bool EpollSet::leave(bool waits) {
    if (!may_change_lists()) {
        return false;
    }
    bool left = false;
    if (const LocalLock::Hold hold(lock_, waits); hold) {
        left = true;
        number = -1; // for note_number()
        for (Watch*& bucket : table_) {
            while (bucket != nullptr) {
                remove(bucket);
            }
        }
        if (Watch* spare = std::exchange(spare_, nullptr); spare != nullptr) {
            free_watch(spare);
        }
        if (wakeup_ != 0) {
            wakeup::release(wakeup_.exchange(0)); // the descriptor has left with the kernel's set
            pipe_ = Pipe::none;
        }
    }
    if (nested_watches.load() != 0) { // the kernel has removed it from the sets that contain it
        table::for_each_set([&](int, EpollSet& outer) { left = outer.remove_nested(*this, waits) && left; });
    }
    const LocalLock::Hold hold(pool_lock, waits);
    if (!left || !hold) {
        return false;
    }
    next_unused_ = unused_sets;
    unused_sets = this;
    return true;
}

void EpollSet::finish_later() {
    next_unused_ = unfinished_sets.load();
    while (!unfinished_sets.compare_exchange_weak(next_unused_, this)) {
    }
}

void EpollSet::finish_closed() {
    if (unfinished_sets.load(std::memory_order_relaxed) == nullptr) [[likely]] {
        return;
    }
    for (EpollSet* set = unfinished_sets.exchange(nullptr); set != nullptr;) {
        EpollSet* next = set->next_unused_;
        if (!set->leave(false)) { // the handler may wait for this thread
            set->finish_later();
        }
        set = next;
    }
}

Watch* EpollSet::find(int fd) {
    Watch* watch = table_[static_cast<size_t>(fd) % buckets];
    while (watch != nullptr && watch->fd != fd) {
        watch = watch->next;
    }
    return watch;
}

Watch* EpollSet::add(int fd) {
    Watch* watch = spare_ != nullptr ? std::exchange(spare_, nullptr) : new_watch();
    if (watch == nullptr) {
        return nullptr;
    }
    *watch = Watch();
    watch->fd = fd;
    watch->set = this;
    Watch*& bucket = table_[static_cast<size_t>(fd) % buckets];
    watch->next = bucket;
    bucket = watch;
    link(*watch);
    members_.fetch_add(1);
    if (table::set(fd) != nullptr) {
        nested_watches.fetch_add(1); // first: a thread that closes that set from now on waits for the lock of this one
        watch->inner = table::set(fd);
        nested_watches.fetch_sub(watch->inner == nullptr ? 1 : 0);
    }
    if (watch->inner != nullptr) {
        watch->converted = true; // the library checks its members
        ++nested_;
        converted_.fetch_add(1);
        if (was_waited() && watch->inner != this) {
            watch->inner->note_waited();
        }
    }
    return watch;
}

void EpollSet::unlink_data(Watch& watch) {
    for (Watch** at = &by_data_[bucket_of(watch.wanted)]; *at != nullptr; at = &(*at)->next_of_data) {
        if (*at == &watch) {
            *at = watch.next_of_data;
            return;
        }
    }
}

void EpollSet::set_wanted(Watch& watch, const epoll_event& event) {
    unlink_data(watch);
    watch.wanted = event;
    Watch*& bucket = by_data_[bucket_of(event)];
    watch.next_of_data = bucket;
    bucket = &watch;
}

void EpollSet::remove(Watch* watch) {
    if (was_waited() && watch->connection != nullptr) {
        watch->connection->polled = true; // programs remove a member before they read, see seen.hpp
    }
    unlink_data(*watch);
    for (Watch** at = &table_[static_cast<size_t>(watch->fd) % buckets]; *at != nullptr; at = &(*at)->next) {
        if (*at == watch) {
            *at = watch->next;
            break;
        }
    }
    deactivate(*watch);
    forget_reported(*watch);
    unlink(*watch);
    if (watch->inner != nullptr) {
        --nested_;
        nested_watches.fetch_sub(1);
    }
    removed_ -= watch->removed ? 1 : 0;
    if (watch->converted) {
        converted_.fetch_sub(1);
    }
    members_.fetch_sub(1);
    // Programs add and remove a member for each connection, or each request: the last one is kept at hand.
    if (Watch* before = std::exchange(spare_, watch); before != nullptr) {
        free_watch(before);
    }
}

// For edge-triggered members: the present state counts as new. The kernel's epoll_ctl(2) also reports what is there.
void EpollSet::report_anew(Watch& watch) {
    watch.kernel_in = false;
    watch.seen_arrived = UINT64_MAX;
    watch.seen_ended = 0;
    watch.seen_blocked = watch.connection != nullptr ? watch.connection->state.load()->blocked.load() - 1 : 0;
}

// With the lock. The peer notifies threads that have not done so themselves.
void EpollSet::arm_for_sleepers(const Watch& watch) {
    Connection& c = *watch.connection;
    if (c.segment.load() != nullptr) {
        stream::arm(c, static_cast<short>(watch.wanted.events),
                    stream::takes_ids(c) ? sleeper_for(c) : uint64_t{path::by_frame});
    }
}

// With the lock. From now on the kernel's events of this member only cause a check of it. wakes: a thread may sleep in
// the kernel's set. is_due: the program has not been told of an event since it requested one.
void EpollSet::convert(Watch& watch, int epfd, bool wakes, bool is_due) {
    if (watch.converted || watch.connection == nullptr || !gate::is_careful(*watch.connection)) {
        return;
    }
    // First: a thread that the kernel wakes must see that it has to check memory.
    converted_.fetch_add(1);
    // Its event was reported to the program, or a thread has it and waits for the lock: only that thread knows, and
    // converts it in take_kernel_events(). Until then, or until the program requests an event, the kernel reports none.
    if (!is_due && (watch.wanted.events & EPOLLONESHOT) != 0 && is_shot(epfd, watch.fd)) {
        converted_.fetch_sub(1);
        return;
    }
    watch.converted = true;
    watch.disabled = false;
    report_anew(watch); // the present state may not have been reported
    activate(watch);
    // A thread that sleeps has armed nothing at the peer, and has not checked the ring: the kernel's socket, which
    // usually has space, wakes it. Another thread may take that event, though, so what comes later is announced, too.
    number = epfd;
    const bool woken = wakes || is_asleep();
    if (woken) {
        arm_for_sleepers(watch);
    }
    const uint32_t space = woken ? uint32_t{EPOLLOUT} : watch.wanted.events & EPOLLOUT;
    const uint32_t events = is_several() ? reported_to_all : kernel_events_of(watch.wanted.events | space);
    if (!change_in_kernel(watch, events) && table::connection(watch.fd) == watch.connection && may_change_lists()) {
        // The socket that was the member is closed, and never was a connection: this one has only its number.
        unlink(watch);
        watch.connection = nullptr;
        watch.converted = false;
        converted_.fetch_sub(1);
        deactivate(watch);
        forget_reported(watch);
    }
}

// With the lock. Programs remove and add members for each request. The kernel need not be called if it watches a
// converted member for all that is needed. A removed member stays in the kernel's set until a thread sleeps, since it
// may be added again.
bool EpollSet::change_in_memory(Watch& watch, int operation, const epoll_event* event) {
    if (!watch.converted || watch.connection == nullptr || (watch.wanted.events & EPOLLEXCLUSIVE) != 0 || is_asleep() ||
        is_several()) {
        return false;
    }
    if (operation == EPOLL_CTL_DEL && !watch.removed) {
        watch.removed = true;
        ++removed_;
        return true;
    }
    // The kernel reports the error of adding a present member, or of changing an absent one.
    if (watch.removed != (operation == EPOLL_CTL_ADD) || event == nullptr || (event->events & EPOLLEXCLUSIVE) != 0 ||
        event->data.u64 != watch.wanted.data.u64 || (kernel_events_of(event->events) & ~watch.kernel_events) != 0) {
        return false;
    }
    removed_ -= watch.removed ? 1 : 0;
    watch.removed = false;
    watch.wanted = *event;
    watch.disabled = false;
    report_anew(watch);
    activate(watch);
    return true;
}

// With the lock.
void EpollSet::flush_removed() {
    if (removed_ == 0 || table::set(number) != this || !may_change_lists()) [[likely]] {
        return;
    }
    for (size_t i = 0; i < buckets && removed_ != 0; ++i) {
        for (Watch* watch = table_[i]; watch != nullptr;) {
            Watch* next = watch->next;
            if (watch->removed) {
                sys::call(SYS_epoll_ctl, number.load(), EPOLL_CTL_DEL, watch->fd, nullptr);
                remove(watch);
            }
            watch = next;
        }
    }
}

// Whether a member with the same data is still in the kernel's set only.
bool EpollSet::has_removed_of(const epoll_event& event) const {
    const Watch* watch = removed_ != 0 ? by_data_[bucket_of(event)] : nullptr;
    while (watch != nullptr && (!watch->removed || watch->wanted.data.u64 != event.data.u64)) {
        watch = watch->next_of_data;
    }
    return watch != nullptr;
}

void EpollSet::update_kernel() {
    const LocalLock::Hold hold(lock_);
    if (hold) {
        flush_removed();
    }
}

int EpollSet::control(int epfd, int operation, int fd, epoll_event* event) {
    sys::ErrnoKept kept_for_success;
    int result = 0;
    int error = 0;
    {
        const LocalLock::Hold hold(lock_);
        // A signal handler that has interrupted this set's own functions, or those of its lists.
        if (!hold || !may_change_lists() || !note_number(epfd)) {
            return real::epoll_ctl(epfd, operation, fd, event);
        }
        Watch* watch = find(fd);
        Connection* c = table::connection(fd);
        // For an fd that was closed without the library's knowledge.
        const auto drop_stale = [&](bool stale) {
            if (watch != nullptr && stale) {
                remove(watch);
                watch = nullptr;
            }
        };
        drop_stale(watch != nullptr && watch->connection != c);
        if (watch != nullptr && change_in_memory(*watch, operation, event)) {
            return 0;
        }
        if (watch != nullptr && watch->removed) {
            flush_removed();
            watch = nullptr;
        }
        if (operation == EPOLL_CTL_ADD && event != nullptr && has_removed_of(*event)) {
            flush_removed(); // else its events could be taken for those of the removed one
        }
        epoll_event changed{};
        epoll_event* given = event;
        const bool converts = operation == EPOLL_CTL_MOD && watch != nullptr && watch->converted && c != nullptr;
        if (converts && event != nullptr && (event->events & EPOLLEXCLUSIVE) == 0) {
            changed = *event;
            changed.events = kernel_events_of(event->events);
            given = &changed;
            watch->kernel_events = changed.events;
        }
        // Before the call: a thread to which the kernel reports the member from now on must see that it has to check
        // memory.
        const bool is_due = c != nullptr && gate::is_careful(*c);
        if (is_due) {
            converted_.fetch_add(1);
        }
        result = static_cast<int>(sys::call(SYS_epoll_ctl, epfd, operation, fd, given));
        error = -result;
        drop_stale(result == 0 && operation == EPOLL_CTL_ADD); // on EEXIST it stays a member
        if (result == 0 && operation == EPOLL_CTL_DEL) {
            if (watch != nullptr) {
                remove(watch);
            }
        } else if (result == 0 && event != nullptr) {
            if (watch == nullptr) {
                watch = add(fd);
            }
            if (watch != nullptr) {
                set_wanted(*watch, *event);
                watch->disabled = false;
                report_anew(*watch);
                if (watch->converted) {
                    activate(*watch);
                } else {
                    convert(*watch, epfd, is_asleep(), is_due);
                }
                if (watch->converted && c != nullptr && (event->events & EPOLLEXCLUSIVE) == 0 && is_asleep()) {
                    arm_for_sleepers(*watch);
                    // A thread that sleeps in the set already has armed nothing at the peer, and has not checked the
                    // ring: the kernel's socket, which usually has space, wakes it.
                    changed = *event;
                    changed.events = kernel_events_of(event->events | EPOLLOUT);
                    watch->kernel_events = changed.events;
                    sys::call(SYS_epoll_ctl, epfd, EPOLL_CTL_MOD, fd, &changed);
                }
            }
        }
        if (is_due) {
            converted_.fetch_sub(1);
        }
    }
    if (is_several()) [[unlikely]] {
        leave_to_kernel();
    }
    if (result < 0) {
        kept_for_success.set(error);
        return -1;
    }
    return 0;
}

bool EpollSet::forget(int fd, const Connection& c) {
    const LocalLock::Hold hold(lock_);
    if (!hold || !may_change_lists()) {
        return false;
    }
    // Another thread may have removed it since, or closed the set: then it is another set by now.
    if (Watch* watch = find(fd); watch != nullptr && watch->connection == &c) {
        remove(watch);
    }
    return true;
}

void EpollSet::convert_number(int fd) {
    const LocalLock::Hold hold(lock_);
    if (Watch* watch = hold ? find(fd) : nullptr; watch != nullptr && number >= 0) {
        convert(*watch, number, true);
    }
}

bool EpollSet::note_connected(int fd) {
    const LocalLock::Hold hold(lock_);
    if (!hold || !may_change_lists()) {
        return false;
    }
    Watch* watch = find(fd);
    if (watch != nullptr && watch->connection == nullptr && watch->inner == nullptr) {
        link(*watch);
        convert(*watch, number, true); // if another thread has moved bytes meanwhile
    }
    return true;
}

// A converted member is added anew, since the kernel watches it differently.
bool EpollSet::note_disconnected(int fd) {
    epoll_event wanted{};
    const Connection* c = nullptr;
    int epfd = -1;
    bool removed = false;
    {
        const LocalLock::Hold hold(lock_);
        Watch* watch = hold && may_change_lists() ? find(fd) : nullptr;
        if (watch == nullptr || watch->connection == nullptr) {
            return watch != nullptr;
        }
        if (!watch->converted) {
            unlink(*watch);
            watch->connection = nullptr;
            return true;
        }
        c = watch->connection;
        epfd = number;
        wanted = watch->wanted;
        removed = watch->removed;
        wanted.events &= watch->disabled ? EPOLLONESHOT | EPOLLET : UINT32_MAX;
    }
    forget(fd, *c);
    sys::call(SYS_epoll_ctl, epfd, EPOLL_CTL_DEL, fd, nullptr);
    return !removed && control(epfd, EPOLL_CTL_ADD, fd, &wanted) == 0;
}

void EpollSet::renew_number(int fd) {
    const LocalLock::Hold hold(lock_);
    if (Watch* watch = hold ? find(fd) : nullptr; watch != nullptr && watch->converted) {
        report_anew(*watch);
        activate(*watch);
    }
}

LocalLock& membership_lock() { return list_lock; }

void watches_after_fork() {
    pool_lock.forget();
    list_lock.forget();
}

} // namespace preload
