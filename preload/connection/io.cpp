// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/connection/io.hpp"

#include <iterator>
#include <utility>

#include "preload/base/cancellation.hpp"
#include "preload/connection/stream_internal.hpp"
#include "preload/rendezvous/service.hpp"
#include "preload/rules/decide.hpp"
#include "preload/stats/probes.hpp"
#include "preload/wait/epoll_set.hpp"
#include "preload/wait/restart.hpp"
#include "preload/wait/spin.hpp"
#include "preload/wait/wakeup.hpp"

namespace preload::io {

namespace {

// Counts a thread as asleep on a connection: others then leave it its wake-ups.
class Asleep {
  public:
    Asleep(Connection& c, ConnectionState& s, int fd) : s_(s) {
        s_.sleepers.fetch_add(1);
        stats::slept_on(c);
        RSPRELOAD_PROBE(sleep, fd, s.sleepers.load());
        stream::own_sleeps = 1;
    }
    Asleep(const Asleep&) = delete;
    Asleep& operator=(const Asleep&) = delete;
    ~Asleep() { end(); }
    // Before the destructor: for a pause, which ends by itself, or because the thread is cancelled.
    void end() const {
        if (std::exchange(counted_, false)) {
            stream::own_sleeps = 0;
            s_.sleepers.fetch_sub(1);
        }
    }

  private:
    ConnectionState& s_;
    mutable bool counted_ = true;
};

// The id by which the peer wakes a call that sleeps on an eventfd only. Signals and cancellation act as on a receiving
// call without a timeout. The service watches the kernel's socket.
class OwnSleep {
  public:
    OwnSleep(Connection& c, const ConnectionState& s, bool allowed) : c_(c) {
        id_ = allowed && may_sleep_so(c, s) ? wakeup::acquire() : 0;
        if (id_ != 0) {
            c.guarded = id_;
            // The kernel's socket must be polled for events that the service has already seen.
            const uint32_t seen = c.kernel_events.load();
            if (c.kernel_events_handled.exchange(seen) != seen) {
                give_up();
            }
        }
    }
    OwnSleep(const OwnSleep&) = delete;
    OwnSleep& operator=(const OwnSleep&) = delete;
    ~OwnSleep() { give_up(); }
    void give_up() {
        if (id_ != 0) {
            uint64_t own = id_; // another thread may sleep by id by now, if this one did not sleep in the end
            c_.guarded.compare_exchange_strong(own, 0);
            wakeup::release(std::exchange(id_, 0));
        }
    }
    [[nodiscard]] uint64_t sleeper() const { return by_id() ? id_ : uint64_t{path::by_frame}; }
    [[nodiscard]] bool by_id() const { return id_ != 0; }
    // 1: check again; else -errno. has_part: see sleep_with_part().
    [[nodiscard]] ssize_t sleep(const Asleep& asleep, bool has_part) {
        uint64_t count = 0;
        const uint64_t begin = sys::now_ns();
        const auto undo = [&] {
            give_up();
            asleep.end();
        };
        pollfd one{wakeup::descriptor(id_), POLLIN, 0};
        ssize_t n = has_part ? cancellable([&] { return real::poll(&one, 1UL, -1); }, undo) : 1;
        n = n > 0 ? cancellable([&] { return real::read(one.fd, &count, sizeof(count)); }, undo) : n;
        const ssize_t result = n >= 0 ? 1 : -errno;
        spin::slept(begin, sys::now_ns(), wakeup::notified_at(id_));
        return result;
    }

  private:
    static bool may_sleep_so(Connection& c, const ConnectionState& s) {
        constexpr uint32_t worth_a_guard = 8;
        if (s.time_limits.load(std::memory_order_relaxed) || c.watched.load(std::memory_order_relaxed) ||
            s.sleepers.load() > 1 || !c.same_user.load(std::memory_order_relaxed) || !stream::takes_ids(c)) {
            return false;
        }
        if (c.guard.load() != Guard::on) {
            if (c.sleeps.fetch_add(1, std::memory_order_relaxed) >= worth_a_guard) {
                service::guard(c);
            }
            return false;
        }
        return true;
    }

    Connection& c_;
    wakeup::Id id_ = 0;
};

// Sleeps like a receiving call: for the time of SO_RCVTIMEO, restarted or interrupted by signals in the same way, a
// cancellation point. Bytes, frames, EOF and errors end it. 1: check again; else -errno, or 0 at EOF.
ssize_t sleep_receiving(Connection& c, int fd, const Asleep& asleep) {
    char byte = 0;
    const uint64_t begin = sys::now_ns();
    const ssize_t n = cancellable([&] { return real::recv(fd, &byte, sizeof(byte), MSG_PEEK); }, [&] { asleep.end(); });
    const int error = errno;
    spin::slept(begin, sys::now_ns());
    if (n > 0) {
        stream::note_kernel_readable(c);
    }
    // Another thread has disconnected it: newer kernels say EPIPE to those that sleep, and ENOTCONN to later ones.
    const bool reset = n < 0 && (error == EPIPE || error == ENOTCONN) && c.state.load()->broken;
    return n >= 0 ? n : reset ? -ECONNRESET : -error;
}

// SO_RCVTIMEO or SO_SNDTIMEO of a call, for all its waits together (socket(7)). Begins with the first one.
class TimeLimit {
  public:
    TimeLimit(const ConnectionState& s, int fd, int option) : fd_(fd), option_(option), has_(s.time_limits) {}
    // As poll(2) takes it: -1 without a limit, 0 if it is over.
    [[nodiscard]] int left_ms() {
        constexpr uint64_t ns_per_ms = 1000000;
        const uint64_t now = has_ ? sys::now_ns() : 0;
        if (has_ && end_ns_ == 0) {
            const uint64_t limit_ms = milliseconds(fd_, option_);
            has_ = limit_ms != 0;
            end_ns_ = now + limit_ms * ns_per_ms;
        }
        return !has_ ? -1 : now < end_ns_ ? static_cast<int>((end_ns_ - now + ns_per_ms - 1) / ns_per_ms) : 0;
    }

  private:
    // 0: there is none.
    static uint64_t milliseconds(int fd, int option) {
        constexpr long most_s = 1000000;
        timeval limit{};
        socklen_t length = sizeof(limit);
        return sys::getsockopt(fd, SOL_SOCKET, option, &limit, &length) == 0
                   ? static_cast<uint64_t>(std::min(limit.tv_sec, most_s) * 1000 + (limit.tv_usec + 999) / 1000)
                   : 0;
    }

    int fd_;
    int option_;
    bool has_;
    uint64_t end_ns_ = 0;
};

void note_events(Connection& c, ConnectionState& s, short events) {
    if ((events & (POLLRDHUP | POLLHUP | POLLERR)) != 0) {
        s.ended = true;
    }
    if ((events & POLLIN) != 0) {
        stream::note_kernel_readable(c);
    }
}

// As sleep_receiving(), for a call that has something to return or a time limit: no signal restarts it then, and
// poll(2) is never restarted (signal(7)).
ssize_t poll_receiving(Connection& c, ConnectionState& s, int fd, const Asleep& asleep, TimeLimit& limit) {
    pollfd one{fd, POLLIN | POLLRDHUP, 0};
    const uint64_t begin = sys::now_ns();
    const int n = cancellable([&] { return real::poll(&one, 1UL, limit.left_ms()); }, [&] { asleep.end(); });
    const int result = n > 0 ? 1 : n == 0 ? -EAGAIN : -errno;
    spin::slept(begin, sys::now_ns());
    if (n > 0) {
        note_events(c, s, one.revents);
    }
    return result;
}

// For what no event reports (see Readiness::soon). Signals, cancellation and the time limit end it as they end a call
// that sleeps. 0: check again; else -errno.
ssize_t pause(TimeLimit& limit, bool has_part) {
    const int left = limit.left_ms();
    if (left == 0) {
        return -EAGAIN;
    }
    if (left > 0 || has_part) {
        const int n = cancellable([] { return real::poll(nullptr, 0UL, stream::give_back_pause_ms); }, [] {});
        return n >= 0 ? 0 : -errno;
    }
    pollfd none{-1, 0, 0};
    return poll_restarted(
               none, stream::give_back_pause_ms, [](void*) {}, nullptr) >= 0
               ? 0
               : -errno;
}

// Some bytes were moved before this result: an error that the kernel does not report again is left to the next call.
ssize_t later(ConnectionState& s, ssize_t done, ssize_t result) {
    constexpr ssize_t own_results[] = {0,     -EAGAIN, -EINTR, stream::gone, stream::elsewhere, stream::interrupted,
                                       -EPIPE};
    if (std::find(std::begin(own_results), std::end(own_results), result) == std::end(own_results)) {
        s.pending_error = static_cast<int>(-result);
    }
    return done;
}

void test_return(Connection& c, int fd) {
    static std::atomic<uint32_t> seed{1};
    const uint32_t chance = policy::test_return_permille();
    if (chance == 0) [[likely]] {
        return;
    }
    const uint32_t drawn = seed.fetch_add(2654435761U, std::memory_order_relaxed);
    if ((drawn ^ drawn >> 15) % 1000 < chance) {
        const stream::WriteSection section(c, fd);
        if (section && (c.state.load()->in_epoch.load() & 1) != 0) {
            stream::return_out(c, false);
        }
    }
}

} // namespace

void pin_for(Connection& c, int fd, Reason reason) {
    const sys::ErrnoKept kept;
    stream::pin(c, fd, reason);
}

void count(Connection& c, ConnectionState& s, int flags) {
    c.used.store(true, std::memory_order_relaxed);
    wait::note_moved(c);
    const uint32_t calls = s.calls.fetch_add(1, std::memory_order_relaxed) + 1;
    // A connection that the fabric has failed still has the memory, and goes on by the kernel.
    if (c.requested.load(std::memory_order_relaxed) || gate::is_settled(s) ||
        s.holders.load(std::memory_order_relaxed) > 1) { // the others would not have its memory, see attach()
        return;
    }
    const uint64_t bytes = s.received.load(std::memory_order_relaxed) + s.sent.load(std::memory_order_relaxed);
    const bool many_bytes = bytes >= policy::worth_after_bytes && s.attempts.load(std::memory_order_relaxed) == 0 &&
                            s.worth_at.load(std::memory_order_relaxed) <= policy::worth_after_calls();
    if (calls >= s.worth_at.load(std::memory_order_relaxed) || many_bytes) {
        constexpr uint32_t calls_between_looks = 8;
        if (const uint64_t at = s.retry_at_ns.load(std::memory_order_relaxed); at != 0 && sys::now_ns() < at) {
            s.worth_at.store(calls + calls_between_looks, std::memory_order_relaxed); // not each call reads the clock
            return;
        }
        const sys::ErrnoKept kept;
        if (c.watched.load(std::memory_order_relaxed) && watched_by_several(c)) {
            stream::pin(c, c.fd.load(), Reason::shared_set);
            return;
        }
        Reason unseen = Reason::unseen_wait;
        if (!wait::is_seen(c, flags)) {
            const uint64_t later = uint64_t{calls} + std::max(calls / 2, 1U);
            s.worth_at.store(static_cast<uint32_t>(std::min<uint64_t>(later, UINT32_MAX)), std::memory_order_relaxed);
            if (Reason none = Reason::none; s.reason.compare_exchange_strong(none, unseen)) {
                stats::refresh(c);
            }
            return;
        }
        if (s.reason.compare_exchange_strong(unseen, Reason::none)) {
            stats::refresh(c);
        }
        service::request(c);
    }
}

namespace {

// The peeked bytes are in the ring, in front of further ones: sleeps by frame, like all waiters. False: the call ends.
bool sleep_behind_peeked(Connection& c, ConnectionState& s, int fd, ssize_t peeked, TimeLimit& limit) {
    const Asleep asleep(c, s, fd);
    stream::arm(c, POLLIN, path::by_frame);
    if (stream::more_may_come(c, peeked)) {
        if (poll_receiving(c, s, fd, asleep, limit) <= 0) {
            return false;
        }
        stream::take_frames_of_waiter(c, fd); // else the frame would wake this thread forever
    }
    return true;
}

// A peek: of what is at the first of the places where there are bytes.
ssize_t receive_in_order(Connection& c, int fd, Parts& parts, int flags) {
    ConnectionState& s = *c.state.load();
    const bool may_wait = (flags & MSG_DONTWAIT) == 0 && !s.nonblocking.load(std::memory_order_relaxed);
    TimeLimit limit(s, fd, SO_RCVTIMEO);
    ssize_t done = 0;
    uint64_t begin = 0; // of a wait for what is given back
    bool by_ring = true;
    if (s.recovered.load(std::memory_order_relaxed) && s.hold.load(std::memory_order_relaxed)) [[unlikely]] {
        stream::settle(c, fd); // what the far end has sent again may have been read by now
    }
    for (;;) {
        const ssize_t n = stream::read_now(c, fd, parts, flags, may_wait);
        if (n == -EAGAIN && !may_wait && stream::lacks_given_back(c, fd)) [[unlikely]] {
            begin = begin != 0 ? begin : sys::now_ns();
            if (stream::await_given_back(c, fd, begin)) {
                continue;
            }
        }
        // Also after a part: further bytes may be in the kernel already, and their edge behind.
        if (s.giving_back && (n == -EAGAIN || (n > 0 && !parts.empty()))) [[unlikely]] {
            watches_refused(c);
        }
        if (n > 0) {
            done += n;
            c.used.store(true, std::memory_order_relaxed);
            if (!parts.empty() && (flags & MSG_WAITALL) != 0 && (flags & MSG_PEEK) == 0 && may_wait) {
                continue;
            }
        } else if (n != -EAGAIN || !may_wait) {
            return done != 0 ? later(s, done, n) : n;
        }
        if (n > 0) {
            watches_read(c);
            return done;
        }
        if (spin::until([&] { return stream::ring_has_bytes(c); })) {
            continue;
        }
        const Asleep asleep(c, s, fd);
        OwnSleep own(c, s, by_ring);
        const stream::Readiness r = stream::check(c, fd, POLLIN, own.sleeper());
        if (r.only_soon(POLLIN)) {
            own.give_up();
            asleep.end();
            if (const ssize_t paused = pause(limit, done != 0); paused < 0) {
                return done != 0 ? done : paused;
            }
            continue;
        }
        if (r.blocked || r.events != 0) {
            if ((r.events & POLLIN) == 0 && (r.events & (POLLHUP | POLLERR | POLLRDHUP)) == 0) {
                sched_yield();
            }
            continue;
        }
        if (own.by_id() && !r.ring) {
            by_ring = false; // the next bytes come by the kernel
            continue;
        }
        if (own.by_id() && s.read_shut) {
            return done; // it may have been notified before, and the peer has had time to answer with a reset
        }
        const ssize_t slept = own.by_id() ? own.sleep(asleep, done != 0)
                              : done != 0 || limit.left_ms() >= 0
                                  ? poll_receiving(c, s, fd, asleep, limit)
                                  : stream::reset_or_end(c, sleep_receiving(c, fd, asleep));
        if (own.by_id() && slept > 0 && s.read_shut && !stream::ring_has_bytes(c)) {
            return done; // like the kernel's call, which ends at once, before the peer can answer with a reset
        }
        if (slept == 0) {
            s.ended = true;
        } else if (slept < 0) {
            // Bytes in the ring come before the error, which the kernel reports once.
            const ssize_t last = stream::read_now(c, fd, parts, flags);
            done += last > 0 ? last : 0;
            return done != 0 ? later(s, done, slept) : slept;
        }
    }
}

// Bytes may be in two places, in front of a switch and behind it: how many of the latter. Negative: they cannot be
// seen.
ssize_t peek_behind(Connection& c, int fd, Parts& parts, int flags, ssize_t first) {
    return first > 0 && !parts.empty() ? stream::peek_further(c, fd, parts, flags, first) : 0;
}

// MSG_PEEK with MSG_WAITALL. What the kernel has stays unread, so it does not report more.
ssize_t peek_for_all(Connection& c, int fd, const Parts& all, int flags) {
    constexpr int pause_ms = 1;
    ConnectionState& s = *c.state.load();
    TimeLimit limit(s, fd, SO_RCVTIMEO);
    for (bool ended = false;;) {
        Parts parts = all;
        const ssize_t first = receive_in_order(c, fd, parts, flags & ~MSG_WAITALL);
        const ssize_t further = peek_behind(c, fd, parts, flags, first);
        const ssize_t n = first + std::max(further, ssize_t{0});
        if (first <= 0 || further < 0 || parts.empty() || ended) {
            return n;
        }
        if (further == 0 && stream::more_may_come(c, first)) {
            if (!sleep_behind_peeked(c, s, fd, first, limit)) {
                return n;
            }
            continue;
        }
        pollfd one{fd, POLLRDHUP, 0};
        const int ready = cancellable([&] { return real::poll(&one, 1UL, pause_ms); }, [] {});
        ended = ready > 0;
        if (ready < 0 || limit.left_ms() == 0) {
            return n;
        }
    }
}

} // namespace

ssize_t receive_careful(Connection& c, int fd, Parts& parts, int flags) {
    if ((flags & MSG_PEEK) == 0) [[likely]] {
        const bool wants_bytes = !parts.empty();
        const ssize_t n = receive_in_order(c, fd, parts, flags);
        if ((n == -EAGAIN || n == -EINTR) && !wants_bytes && (flags & MSG_DONTWAIT) == 0 &&
            !c.state.load()->nonblocking.load()) {
            return 0; // as the kernel after a wait in vain: it has all that it was asked for
        }
        return n;
    }
    if ((flags & (MSG_WAITALL | MSG_DONTWAIT)) == MSG_WAITALL && !c.state.load()->nonblocking.load()) {
        return peek_for_all(c, fd, parts, flags);
    }
    // Who leaves them there until there are enough would never see those behind the switch.
    const ssize_t first = receive_in_order(c, fd, parts, flags);
    return first + std::max(peek_behind(c, fd, parts, flags, first), ssize_t{0});
}

namespace {

// 0: check again; else -errno.
ssize_t wait_to_send(Connection& c, int fd, bool& by_ring, bool has_part, TimeLimit& time_limit) {
    ConnectionState& s = *c.state.load();
    const int limit = time_limit.left_ms();
    const Asleep asleep(c, s, fd);
    OwnSleep own(c, s, by_ring);
    const stream::Readiness r = stream::check(c, fd, POLLOUT, own.sleeper());
    if (r.only_soon(POLLOUT)) {
        own.give_up();
        asleep.end();
        return pause(time_limit, has_part);
    }
    if (r.blocked || (r.events & (POLLOUT | POLLHUP | POLLERR)) != 0) { // a peer that is half-closed still reads
        return 0;
    }
    if (own.by_id()) {
        by_ring = r.ring;
        const ssize_t n = by_ring ? own.sleep(asleep, has_part) : 1;
        return n > 0 ? 0 : n;
    }
    if (limit < 0 && (r.kernel & POLLOUT) == 0 && !has_part) {
        const ssize_t n = sleep_receiving(c, fd, asleep);
        if (n == 0) {
            s.ended = true;
        }
        return n >= 0 || n == -EAGAIN ? 0 : n; // a receive timeout does not apply to sending
    }
    pollfd one{fd, r.kernel, 0};
    if (limit < 0 && !has_part) {
        const auto end = [](void* what) { static_cast<const Asleep*>(what)->end(); };
        const int n = poll_restarted(one, -1, end, const_cast<Asleep*>(&asleep));
        if (n > 0) {
            note_events(c, s, one.revents);
        }
        return n < 0 ? -errno : 0;
    }
    // A full ring is left for the kernel by the service, but only a frame of the peer's wakes this thread, and the peer
    // may be stopped.
    constexpr int look_again_ms = 100;
    const bool looks_again = (r.kernel & POLLOUT) == 0 && (limit < 0 || limit > look_again_ms);
    const int n =
        cancellable([&] { return real::poll(&one, 1UL, looks_again ? look_again_ms : limit); }, [&] { asleep.end(); });
    if (n < 0) {
        return -errno;
    }
    note_events(c, s, one.revents);
    return n == 0 && !looks_again ? -EAGAIN : 0;
}

// A shutdown ends a call that sleeps, even if space has become available meanwhile. The kernel returns the error, and
// raises SIGPIPE. 0: there was none.
ssize_t check_shutdown(const ConnectionState& s, int fd, int flags) {
    constexpr int max_pauses = 100000; // the thread that shuts down may have been killed midway
    for (int i = 0; i < max_pauses && s.write_shut == WriteShut::begun; ++i) {
        const timespec pause{0, 100000};
        sys::call(SYS_nanosleep, &pause, nullptr);
    }
    return s.write_shut == WriteShut::done
               ? sys::call(SYS_sendto, fd, nullptr, 0, (flags & MSG_NOSIGNAL) | MSG_DONTWAIT, nullptr, 0)
               : 0;
}

} // namespace

ssize_t send_careful(Connection& c, int fd, Parts& parts, int flags) {
    ConnectionState& s = *c.state.load();
    const bool may_wait = (flags & MSG_DONTWAIT) == 0 && !s.nonblocking.load(std::memory_order_relaxed);
    ssize_t done = 0;
    bool by_ring = true;
    TimeLimit limit(s, fd, SO_SNDTIMEO);
    if (!parts.empty()) {
        test_return(c, fd);
    }
    if (s.hold.load(std::memory_order_relaxed)) {
        stream::settle(c, fd);
    }
    for (;;) {
        // The error behind a part is the next call's, and so is its SIGPIPE.
        const ssize_t n = stream::write_now(c, fd, parts, done != 0 ? flags | MSG_NOSIGNAL : flags);
        if (n > 0) {
            done += n;
            c.used.store(true, std::memory_order_relaxed);
            if (parts.empty() || !may_wait) {
                if (!parts.empty()) {
                    watches_blocked(c);
                }
                return done;
            }
            continue;
        }
        if (n != -EAGAIN || !may_wait) {
            if (n == -EAGAIN) {
                watches_blocked(c);
            }
            return done != 0 ? later(s, done, n) : n;
        }
        if (spin::until([&] { return stream::ring_has_space(c); })) {
            continue;
        }
        if (const ssize_t waited = wait_to_send(c, fd, by_ring, done != 0, limit); waited < 0) {
            return done != 0 ? later(s, done, waited) : waited;
        }
        if (s.write_shut != WriteShut::no) [[unlikely]] {
            if (done != 0) {
                return done; // the next call reports it
            }
            if (const ssize_t shut = check_shutdown(s, fd, flags); shut < 0) {
                return shut;
            }
        }
    }
}

ssize_t send_file_careful(Connection& c, int fd, int file, off_t* offset, size_t count) {
    ConnectionState& s = *c.state.load();
    // The kernel reads only from what has a position. Reading from anything else would block, with the lock held.
    if (const long position = offset == nullptr ? sys::call(SYS_lseek, file, 0, SEEK_CUR) : 0; position < 0) {
        return position == -ESPIPE ? -EINVAL : position;
    }
    const bool may_wait = !s.nonblocking.load(std::memory_order_relaxed);
    size_t done = 0;
    bool by_ring = true;
    TimeLimit limit(s, fd, SO_SNDTIMEO);
    while (done < count) {
        const ssize_t n = stream::write_file_now(c, fd, file, offset, count - done);
        if (n > 0) {
            done += static_cast<size_t>(n);
            c.used.store(true, std::memory_order_relaxed);
            continue;
        }
        if (n == 0) {
            break;
        }
        if (n != -EAGAIN || !may_wait) {
            if (n == -EAGAIN) {
                watches_blocked(c);
            }
            return done != 0 ? static_cast<ssize_t>(done) : n;
        }
        if (const ssize_t waited = wait_to_send(c, fd, by_ring, done != 0, limit); waited < 0) {
            return done != 0 ? static_cast<ssize_t>(done) : waited;
        }
        if (s.write_shut != WriteShut::no) [[unlikely]] {
            if (done != 0) {
                break;
            }
            if (const ssize_t shut = check_shutdown(s, fd, 0); shut < 0) {
                return shut;
            }
        }
    }
    return static_cast<ssize_t>(done);
}

bool foreign(Connection& c) {
    constexpr int rounds = 500;
    ConnectionState& s = *c.state.load();
    give_reason(s, Reason::several);
    stats::refresh(c);
    s.hold = true;
    s.handed_over = true;
    for (int i = 0; i < rounds; ++i) {
        if ((s.gate.load() & gate::careful) == 0) {
            return true;
        }
        service::ask_holder(s.holder_service, s.token);
        const timespec pause{0, 10000000};
        sys::call(SYS_nanosleep, &pause, nullptr);
    }
    return false;
}

} // namespace preload::io
