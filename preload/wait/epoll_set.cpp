// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Waiting in a set: events of converted members from memory, and of the others from the kernel.
#include "preload/wait/epoll_set.hpp"

#include <optional>
#include <tuple>
#include <utility>

#include "preload/base/cancellation.hpp"
#include "preload/base/system.hpp"
#include "preload/connection/stream.hpp"
#include "preload/connection/table.hpp"
#include "preload/rules/decide.hpp"
#include "preload/wait/spin.hpp"
#include "preload/wait/wakeup.hpp"

namespace preload {

namespace {

void set_flag(bool& flag, bool value) { std::atomic_ref(flag).store(value); }

constexpr uint32_t always_reported = EPOLLERR | EPOLLHUP;

} // namespace

namespace {

// Whether all bytes that have arrived on a connection are in the ring.
bool only_ring(const Connection& c) {
    const uint32_t epoch = c.state.load()->in_epoch.load();
    return (epoch & 1) != 0 && c.in_ring().writer.epoch.load(std::memory_order_acquire) == epoch;
}

// What stream::check() reports as `arrived`, while all of it is in the ring.
uint64_t arrived(const Connection& c) {
    const ConnectionState& s = *c.state.load();
    return c.in_ring().writer.head.load() + s.received.load() - s.frames_seen;
}

constexpr uint32_t reading = EPOLLIN | EPOLLRDNORM;
constexpr uint32_t writing = EPOLLOUT | EPOLLWRNORM;

// For spinning, without the connection's locks: whether there may be an event.
bool has_news(const Watch& watch) {
    const Connection* c = watch.connection;
    if (c == nullptr || watch.removed || watch.disabled) {
        return false;
    }
    const uint32_t wanted = watch.wanted.events;
    if ((wanted & reading) != 0 && stream::ring_has_bytes(*c) && arrived(*c) != watch.seen_arrived) {
        return true;
    }
    return (wanted & writing) != 0 && stream::ring_has_space(*c) &&
           ((wanted & EPOLLET) == 0 || c->state.load()->blocked.load(std::memory_order_relaxed) != watch.seen_blocked);
}

} // namespace

void EpollSet::deactivate(Watch& watch) {
    watch.active = false;
    for (Watch** at = &active_; *at != nullptr; at = &(*at)->next_active) {
        if (*at == &watch) {
            *at = watch.next_active;
            return;
        }
    }
}

void EpollSet::activate(Watch& watch) {
    if (watch.active) {
        return;
    }
    watch.active = true;
    set_flag(watch.armed, false);
    watch.next_active = nullptr;
    Watch** end = &active_; // in order of arrival, as in the kernel
    while (*end != nullptr) {
        end = &(*end)->next_active;
    }
    *end = &watch;
}

// Whether a member has events. If not, and to_sleep, its wake-up is armed.
bool EpollSet::check(Watch& watch, Next next, uint32_t& events) {
    const bool to_sleep = next != Next::check;
    events = 0;
    if (watch.inner != nullptr) {
        return check_nested(watch, to_sleep, events);
    }
    if (watch.connection == nullptr || watch.removed) {
        return false;
    }
    Connection& c = *watch.connection;
    // The fd may have been closed while another fd keeps the connection open, and so in the set.
    const int fd = table::connection(watch.fd) == &c ? watch.fd : c.fd.load();
    if (watch.disabled || table::connection(fd) != &c || c.segment.load() == nullptr) {
        return false;
    }
    const ConnectionState& s = *c.state.load();
    const uint32_t given = watch.wanted.events;
    const auto wanted =
        static_cast<short>(given & (EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP | EPOLLRDNORM | EPOLLWRNORM));
    const bool edge = (given & EPOLLET) != 0;
    uint64_t notified_peer = to_sleep ? path::by_frame : path::nobody;
    if (next == Next::sleep && stream::takes_ids(c)) {
        notified_peer = sleeper_for(c);
    }
    const uint32_t blocked = s.blocked.load(std::memory_order_relaxed);
    if (edge) {
        if (!to_sleep && only_ring(c) && !watch.kernel_in && !s.kernel_readable && blocked == watch.seen_blocked &&
            arrived(c) == watch.seen_arrived && s.ended == (watch.seen_ended != 0)) {
            return false; // nothing has happened since the last report
        }
        if (to_sleep) {
            stream::arm(c, wanted, notified_peer); // regardless of the present state
        }
    }
    uint64_t now = watch.seen_arrived;
    stream::Readiness r;
    // Counted first: bytes that arrive during the check are reported now or the next time.
    const uint64_t counted = edge && !to_sleep && c.segment.load() != nullptr ? arrived(c) : 0;
    if (!to_sleep && stream::check_in_memory(c, wanted, r.events)) {
        now = counted;
    } else {
        r = stream::check(c, fd, wanted, notified_peer, edge ? &now : nullptr);
    }
    soon_ = soon_ || r.soon;
    if (r.only_soon(wanted)) {
        return false;
    }
    if (r.blocked) {
        // No longer careful, or not in this process: the kernel's answer and its edges count.
        r.events = sys::events_now(fd, wanted);
        if (edge && !watch.kernel_named && watch.seen_arrived != UINT64_MAX) {
            return false;
        }
        now = watch.seen_arrived + 1;
    }
    watch.kernel_named = false;
    const auto reported = static_cast<uint32_t>(r.events) & (given | always_reported);
    if (edge) {
        const auto ended = static_cast<short>(r.events & (POLLRDHUP | POLLHUP | POLLERR));
        // A frame in flight lowers the count for a moment.
        const bool bytes = (given & reading) != 0 && static_cast<int64_t>(now - watch.seen_arrived) > 0;
        const bool space = (r.events & POLLOUT) != 0 && s.blocked.load(std::memory_order_relaxed) != watch.seen_blocked;
        if ((!bytes && !space && ended == watch.seen_ended && !(watch.kernel_in && (reported & EPOLLPRI) != 0)) ||
            reported == 0) {
            return false;
        }
        watch.seen_arrived = now;
        watch.seen_ended = ended;
        if ((r.events & POLLOUT) != 0) {
            watch.seen_blocked = blocked; // before the check: of a write that is blocked meanwhile, space is news again
        }
    }
    watch.kernel_in = false;
    events = reported;
    return reported != 0;
}

void EpollSet::arm_active() {
    const LocalLock::Hold hold(lock_);
    for (const Watch* watch = hold ? active_ : nullptr; watch != nullptr; watch = watch->next_active) {
        if (watch->connection != nullptr && !watch->removed && watch->connection->segment.load() != nullptr) {
            stream::arm(*watch->connection, POLLIN, path::by_frame);
        }
    }
}

// Changes with what happens to its connections.
uint64_t EpollSet::progress() {
    const LocalLock::Hold hold(lock_);
    uint64_t sum = 0;
    for (Watch* bucket : table_) {
        for (const Watch* watch = hold ? bucket : nullptr; watch != nullptr; watch = watch->next) {
            if (watch->connection != nullptr && watch->connection->segment.load() != nullptr) {
                const ConnectionState& s = *watch->connection->state.load();
                sum += arrived(*watch->connection) + s.blocked.load(std::memory_order_relaxed) + (s.ended ? 1 : 0);
            }
        }
    }
    return sum;
}

// With the lock. A call unrelated to the set has consumed the frame that a member waited for.
void EpollSet::activate_missed() {
    if (!missed_.load(std::memory_order_relaxed) || !missed_.exchange(false)) [[likely]] {
        return;
    }
    for (Watch* bucket : table_) {
        for (Watch* watch = bucket; watch != nullptr; watch = watch->next) {
            if (std::atomic_ref(watch->missed).exchange(false) && (watch->converted || watch->inner != nullptr)) {
                activate(*watch);
            }
        }
    }
}

// With the lock: collects the events of active members.
int EpollSet::collect(epoll_event* events, int max, bool to_sleep) {
    int count = 0;
    soon_ = false;
    by_level_ = false;
    activate_missed();
    if (to_sleep) {
        flush_removed();
    }
    Watch* list = active_;
    Watch* kept = nullptr;
    Watch** end = &kept;
    while (list != nullptr && count < max) {
        Watch* watch = list;
        list = watch->next_active;
        if (watch->removed) {
            watch->active = false;
            continue;
        }
        uint32_t reported = 0;
        const bool soon_before = std::exchange(soon_, false);
        set_flag(watch->armed, to_sleep);
        const bool there = check(*watch, to_sleep ? Next::sleep : Next::check, reported);
        const bool again = soon_;
        soon_ = soon_ || soon_before;
        if (there) {
            events[count].events = reported;
            events[count].data = watch->wanted.data;
            ++count;
            watch->disabled = (watch->wanted.events & EPOLLONESHOT) != 0;
            by_level_ = by_level_ || (watch->wanted.events & (EPOLLONESHOT | EPOLLET)) == 0;
        }
        if (!there && to_sleep && watch->inner == nullptr && !again) {
            watch->active = false;
            note_reported(*watch);
            continue;
        }
        set_flag(watch->armed, false);
        *end = watch;
        end = &watch->next_active;
    }
    // Unchecked members come first the next time.
    *end = nullptr;
    if (list != nullptr) {
        Watch* last = list;
        while (last->next_active != nullptr) {
            last = last->next_active;
        }
        last->next_active = kept;
        active_ = list;
    } else {
        active_ = kept;
    }
    return count;
}

// Whether the kernel's events with its data are about no other member.
bool EpollSet::is_only_of_data(const Watch& watch) const {
    const Watch* other = by_data_[bucket_of(watch.wanted)];
    while (other != nullptr && (other == &watch || other->wanted.data.u64 != watch.wanted.data.u64)) {
        other = other->next_of_data;
    }
    return other == nullptr;
}

namespace {

bool has_ended(const Watch& watch) {
    // A duplicate may keep the connection, and the membership.
    Connection& c = *watch.connection;
    pollfd one{table::connection(watch.fd) == &c ? watch.fd : c.fd.load(), POLLRDHUP, 0};
    return sys::poll(&one, 1, 0) > 0 && (one.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

} // namespace

// With the lock: events of converted members only activate them. Returns how many are left.
int EpollSet::take_kernel_events(epoll_event* events, int count) {
    count = take_own_events(events, count);
    int kept = 0;
    for (int i = 0; i < count; ++i) {
        bool taken = false;
        bool is_left = false; // perhaps it is about a member that is not converted
        for (Watch* watch = by_data_[bucket_of(events[i])]; watch != nullptr; watch = watch->next_of_data) {
            if (watch->wanted.data.u64 != events[i].data.u64) {
                continue;
            }
            if (watch->inner != nullptr && watch->inner->has_careful()) {
                watch->kernel_in = true; // reported once, not both by the kernel and from memory
                activate(*watch);
                taken = true;
                continue;
            }
            if (!watch->converted && watch->connection != nullptr) {
                // This thread has its event, which nobody has reported to the program.
                convert(*watch, number, is_asleep(), is_only_of_data(*watch));
                is_left = is_left || !watch->converted;
            }
            if (watch->converted && watch->connection != nullptr) { // by edge, so also for a member that is added again
                constexpr uint32_t end = EPOLLRDHUP | EPOLLHUP | EPOLLERR;
                if ((events[i].events & end) != 0 && (is_only_of_data(*watch) || has_ended(*watch))) {
                    watch->connection->state.load()->ended = true;
                }
                if ((events[i].events & EPOLLIN) != 0) {
                    stream::note_kernel_readable(*watch->connection);
                }
            }
            if (watch->removed) {
                taken = true;
                continue;
            }
            if (watch->converted && watch->connection != nullptr) {
                watch->kernel_named = true;
                // For a direction in the ring, the kernel reports frames only.
                watch->kernel_in = watch->kernel_in || (events[i].events & EPOLLPRI) != 0 ||
                                   ((events[i].events & EPOLLIN) != 0 && !only_ring(*watch->connection));
                activate(*watch);
                taken = true;
            }
        }
        if (!taken || is_left) {
            events[kept++] = events[i];
        }
    }
    return kept;
}

bool EpollSet::has_number(int epfd) const {
    return number.load(std::memory_order_relaxed) == epfd || table::set(epfd) == this;
}

bool EpollSet::note_number(int epfd) {
    const bool has = has_number(epfd);
    if (has && number.load(std::memory_order_relaxed) != epfd) {
        number = epfd;
    }
    return has;
}

int EpollSet::ask_kernel(int epfd, epoll_event* events, int max, int64_t timeout_ns, const sigset_t* mask) {
    const bool bounded = timeout_ns >= 0;
    const timespec time{timeout_ns / 1000000000, timeout_ns % 1000000000};
    // In milliseconds where they are exact: epoll_pwait2 needs Linux 5.11.
    if (!bounded || timeout_ns % 1000000 == 0) {
        const int64_t milliseconds = bounded ? std::min<int64_t>(timeout_ns / 1000000, INT32_MAX) : -1;
        return real::epoll_pwait(epfd, events, max, static_cast<int>(milliseconds), mask);
    }
    const int n = real::epoll_pwait2(epfd, events, max, &time, mask);
    if (n < 0 && errno == ENOSYS) {
        return real::epoll_pwait(epfd, events, max, static_cast<int>((timeout_ns + 999999) / 1000000), mask);
    }
    return n;
}

int EpollSet::wait(int epfd, epoll_event* events, int max, int64_t timeout_ns, const sigset_t* mask) {
    finish_closed();
    const uint64_t begin = timeout_ns > 0 ? sys::now_ns() : 0;
    int64_t left = timeout_ns;
    bool may_spin = timeout_ns != 0;
    for (;;) {
        if (!has_number(epfd)) [[unlikely]] {
            const int n = ask_kernel(epfd, events, max, left, mask);
            return n > 0 ? without_own(events, n) : n;
        }
        const bool several = is_several();
        if (several) [[unlikely]] {
            leave_to_kernel();
        }
        int count = 0;
        std::optional<Asleep> asleep;
        bool soon = false;
        bool has_active = false;
        bool kernel_first = false;
        {
            const LocalLock::Hold hold(lock_);
            if (!hold) {
                return wait_within(epfd, events, max, left, mask);
            }
            if (!note_number(epfd)) [[unlikely]] {
                continue;
            }
            // The kernel's turn, if the last call filled the array: events from memory could fill it each time.
            kernel_first = max_reached_ && sys::now_ns() - asked_kernel_ns_.load() >= policy::max_kernel_pause_ns();
            if (kernel_first) {
                const int n = ask_kernel(epfd, events, max, 0, mask);
                asked_kernel_ns_ = sys::now_ns();
                count = n > 0 ? take_kernel_events(events, n) : 0;
            }
            count += collect(events + count, max - count, false);
            if (count == 0 && take_notice()) {
                count = collect(events, max, false);
            }
            max_reached_ = count == max && !kernel_first;
            if (count == 0 && !may_spin && left != 0) {
                count = collect(events, max, true);
                soon = soon_;
                if (count == 0) {
                    asleep.emplace(*this);
                    if (asleep->any_missed() || take_notice()) { // since the last check
                        continue;
                    }
                    if (soon) {
                        asleep.reset(); // consumers of frames need not wait for this thread
                    }
                }
            }
            has_active = active_ != nullptr;
        }
        if (count == 0 && may_spin) {
            may_spin = false;
            if (has_active) {
                spin::until([&] {
                    const LocalLock::Hold hold(lock_);
                    if (hold && wakeup_ != 0 && wakeup::is_notified(wakeup_)) {
                        return true;
                    }
                    for (Watch* watch = hold ? active_ : nullptr; watch != nullptr; watch = watch->next_active) {
                        if (has_news(*watch)) {
                            return true;
                        }
                    }
                    return false;
                });
            }
            continue;
        }
        if (count > 0) {
            const uint64_t now = sys::now_ns();
            // Asked twice, the kernel would report what is still readable twice.
            if (count == max || kernel_first ||
                now - asked_kernel_ns_.load(std::memory_order_relaxed) < policy::max_kernel_pause_ns()) {
                return count;
            }
            asked_kernel_ns_.store(now, std::memory_order_relaxed);
            const int more = ask_kernel(epfd, events + count, max - count, 0, mask);
            if (more > 0) {
                const LocalLock::Hold hold(lock_);
                const bool is_own = hold && note_number(epfd);
                const bool woken = has_own(events + count, more);
                count += is_own ? take_kernel_events(events + count, more) : put_back_own(events + count, more);
                if (is_own && woken) {
                    wake_another(); // this thread returns the events that it already has
                }
            }
            return count;
        }
        if (asleep && !several) {
            note_waiter();
            if (is_several()) [[unlikely]] {
                continue;
            }
        }
        const uint64_t before = sys::now_ns();
        constexpr int64_t pause_ns = stream::give_back_pause_ms * 1000000;
        const bool shortened = soon && (left < 0 || left > pause_ns);
        const int n = cancellable([&] { return ask_kernel(epfd, events, max, shortened ? pause_ns : left, mask); },
                                  [&] {
                                      if (asleep) {
                                          asleep->end();
                                      }
                                  });
        const int error = errno;
        asked_kernel_ns_.store(sys::now_ns(), std::memory_order_relaxed);
        if (asleep) {
            asleep.reset();
            spin::slept(before, asked_kernel_ns_.load(), wakeup::notified_at(wakeup_));
        }
        if (n < 0) {
            errno = error;
            return n;
        }
        int kept = 0;
        {
            const LocalLock::Hold hold(lock_);
            const bool is_own = hold && note_number(epfd);
            kept = is_own ? take_kernel_events(events, n) : put_back_own(events, n);
            if (kept < max && is_own) {
                kept += collect(events + kept, max - kept, false);
            }
            if (is_own && (kept == max || (kept != 0 && by_level_))) {
                wake_another();
            }
        }
        if (kept != 0 || timeout_ns == 0) {
            return kept;
        }
        if (timeout_ns > 0) {
            left = timeout_ns - static_cast<int64_t>(sys::now_ns() - begin);
            if (left <= 0) {
                if (n == 0 && !shortened) {
                    return 0;
                }
                left = 0;
            }
        }
        may_spin = n > 0 && left != 0; // else, if shortened, collect() and sleep again
    }
}

int EpollSet::sift(epoll_event* events, int count) {
    const LocalLock::Hold hold(lock_);
    if (!hold) {
        return put_back_own(events, count);
    }
    const int kept = take_kernel_events(events, count);
    return kept + collect(events + kept, count - kept, false);
}

bool EpollSet::ready(bool to_sleep, bool& soon) {
    const LocalLock::Hold hold(lock_);
    if (!hold) {
        return false;
    }
    activate_missed();
    if (!has_careful()) {
        return false;
    }
    bool there = false;
    soon_ = false;
    flush_removed();
    drain_wakeup();
    Watch* list = active_;
    active_ = nullptr;
    Watch** end = &active_;
    while (list != nullptr) {
        Watch* watch = list;
        list = watch->next_active;
        uint32_t reported = 0;
        // Checked as level-triggered: edges stay pending.
        const auto before = std::tuple(watch->kernel_in, watch->kernel_named, watch->seen_arrived, watch->seen_blocked,
                                       watch->seen_ended);
        set_flag(watch->armed, to_sleep);
        const bool soon_before = std::exchange(soon_, false);
        const bool one = check(*watch, to_sleep ? Next::sleep_elsewhere : Next::check, reported);
        const bool again = soon_;
        soon_ = soon_ || soon_before;
        std::tie(watch->kernel_in, watch->kernel_named, watch->seen_arrived, watch->seen_blocked, watch->seen_ended) =
            before;
        there = there || one;
        watch->active = one || again || !to_sleep;
        if (watch->active) {
            set_flag(watch->armed, false);
            watch->next_active = nullptr;
            *end = watch;
            end = &watch->next_active;
        }
    }
    soon = soon || (!there && soon_);
    return there;
}

} // namespace preload
