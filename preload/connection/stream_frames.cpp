// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The bytes that TCP carries while a direction is in the ring: any reader consumes and counts them; they wake threads
// that sleep on the socket.
#include "preload/connection/stream_internal.hpp"

#include <algorithm>
#include <array>

#include <sched.h>

#include "preload/base/system.hpp"
#include "preload/rendezvous/service.hpp"
#include "preload/wait/epoll_set.hpp"

namespace preload::stream {

using path::Direction;
using path::Frame;

namespace {

bool others_sleep(const Connection& c) {
    return c.state.load()->sleepers.load() > own_sleeps ||
           (c.watched.load(std::memory_order_relaxed) && watches_asleep(c));
}

} // namespace

// A frame wakes all threads that sleep on the socket; one that finds it consumed sleeps on. They get some time to wake,
// on a busy machine only a yield or two: the lock is held, and a thread that is late is woken again. Not behind
// Frame::resume, when frames have ended: one that waits for space could sleep until the peer writes.
void let_others_wake(Connection& c, int fd) {
    constexpr uint64_t timeout_ns = 1000000U;
    constexpr uint64_t last_timeout_ns = 100000000U;
    constexpr timespec pause{0, 200000};
    if (others_sleep(c) && (unread_in_kernel(fd) > 0 || (c.mirrored && is_at_mark(fd)))) {
        const bool last = published_epoch(c) != c.state.load()->in_epoch.load();
        if (last) {
            wake_everybody(c); // the frame wakes the others
        }
        const uint64_t begin = sys::now_ns();
        for (uint64_t waited = 0; others_sleep(c) && waited < (last ? last_timeout_ns : timeout_ns);
             waited = sys::now_ns() - begin) {
            if (waited < timeout_ns) {
                sched_yield();
            } else {
                sys::call(SYS_nanosleep, &pause, nullptr);
            }
        }
    }
}

void wake_again(Connection& c) {
    arm(c, POLLIN | POLLOUT, path::by_frame);
    service::ask(c.shared(), 1 - c.out_index());
}

void count_received(Connection& c, uint64_t n) {
    ConnectionState& s = *c.state.load();
    const uint64_t before = s.received.fetch_add(n, std::memory_order_relaxed);
    s.kernel_more_in.fetch_sub(n, std::memory_order_relaxed); // the call that returns them counts them
    c.in_ring().reader.received.store(before + n, std::memory_order_release);
}

namespace {

// Frames that the writer has counted while it stays in the ring: no Frame::resume is among them, and no bytes follow,
// so one call consumes them all. Returns how many.
ssize_t take_counted_frames(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    const Direction& ring = c.in_ring();
    std::array<uint8_t, 16> bytes{};
    const uint32_t there = ring.writer.frames.load(std::memory_order_acquire) - s.frames_seen.load();
    // The worker reports the far end's frames late.
    if (there == 0 || c.mirrored || ring.writer.epoch.load(std::memory_order_acquire) != s.in_epoch.load()) {
        return 0;
    }
    const long n = sys::recv(fd, bytes.data(), std::min<size_t>(there, bytes.size()), MSG_DONTWAIT);
    if (n <= 0) {
        if (n != -EAGAIN) {
            s.ended = true;
            s.pending_error = static_cast<int>(-n); // which the kernel reports once
        }
        return 0;
    }
    count_received(c, static_cast<uint64_t>(n));
    s.frames_seen.fetch_add(static_cast<uint32_t>(n), std::memory_order_relaxed);
    if (std::any_of(bytes.begin(), bytes.begin() + n,
                    [](uint8_t byte) { return byte != static_cast<uint8_t>(Frame::wake); })) {
        return violation(c, fd, Reason::past_library);
    }
    return n;
}

// The writer counts a frame before it sends it; the worker reports the far end's late.
bool has_seen_more_than_counted(const Connection& c) {
    const ConnectionState& s = *c.state.load();
    const uint32_t counted = c.in_ring().writer.frames.load(std::memory_order_acquire);
    return !c.mirrored && !s.recovered && static_cast<int32_t>(s.frames_seen.load() - counted) > 0;
}

} // namespace

void note_kernel_readable(Connection& c) {
    ConnectionState& s = *c.state.load();
    if ((s.in_epoch.load(std::memory_order_relaxed) & 1) != 0) {
        s.kernel_readable = true;
    }
}

Taken take_frames(Connection& c, int fd, bool quietly, ssize_t& error) {
    // Each frame answers a request of this end, so there are few. A peer that sends them endlessly would keep this
    // thread here.
    constexpr int max_frames = 1024;
    ConnectionState& s = *c.state.load();
    const Direction& ring = c.in_ring();
    Taken taken = Taken::nothing;
    const bool noted = s.kernel_readable.exchange(false); // first: what arrives from now on is noted again
    if (!s.resume_seen) {                                 // else nothing is consumed
        let_others_wake(c, fd);
    }
    const struct Again {
        ~Again() {
            if (taken && c.watched.load(std::memory_order_relaxed)) {
                watches_frames_taken(c);
            }
            if (wanted || (taken && others_sleep(c))) { // a waiter that sees watches_frames_taken() does not sleep
                wake_again(c);
            }
        }
        Connection& c;
        mutable bool wanted = false;
        mutable bool taken = false;
    } again{c};
    ssize_t count = 0;
    while (!s.resume_seen) {
        if (const ssize_t n = take_counted_frames(c, fd); n != 0) {
            taken = Taken::frames;
            again.taken = true;
            again.wanted = again.wanted || others_sleep(c);
            count += n;
            if (n < 0 || count > max_frames) {
                error = violation(c, fd); // or there was one already
                return Taken::failed;
            }
            if (quietly && !noted && ring.writer.frames.load() == s.frames_seen) {
                return taken;
            }
            continue;
        }
        // SIOCINQ ends at an urgent byte; the library sends those only on the fabric.
        if (noted && !c.mirrored && !s.recovered && is_at_mark(fd)) {
            error = violation(c, fd, Reason::past_library);
            return Taken::failed;
        }
        const bool marked = c.mirrored && is_at_mark(fd);
        if (marked) [[unlikely]] {
            if (s.far_record_seen) {
                return taken; // no frames follow
            }
            if (const ssize_t record = take_record(c, fd); record != 0) {
                error = record > 0 ? -EAGAIN : record;
                return record > 0 || record == -EAGAIN ? taken : Taken::failed;
            }
        }
        if (s.far_record_seen && is_recovering(c)) [[unlikely]] {
            return taken;
        }
        // Behind the mark of an urgent byte, SIOCINQ reports nothing (tcp(7)); there is data, as was just seen.
        const bool nothing = !marked && (quietly || c.mirrored) && unread_in_kernel(fd) <= 0;
        if (quietly && nothing) {
            return taken;
        }
        uint8_t byte = 0;
        // A read would skip an urgent byte that arrives only now, and consume the first byte behind it.
        const long n = sys::recv(fd, &byte, 1, MSG_DONTWAIT | (nothing ? MSG_PEEK : 0));
        if (nothing && n > 0) {
            continue;
        }
        if (n <= 0) {
            if (n == 0) {
                s.ended = true;
                return Taken::end;
            }
            error = n;
            if (quietly && n != -EAGAIN && !s.broken) {
                s.ended = true;
                s.pending_error = static_cast<int>(-n); // which the kernel reports once, and these callers to nobody
            }
            return n == -EAGAIN ? taken : Taken::failed;
        }
        count_received(c, 1);
        s.frames_seen.fetch_add(1, std::memory_order_relaxed);
        if (++count > max_frames) {
            error = violation(c, fd);
            return Taken::failed;
        }
        taken = Taken::frames;
        again.taken = true;
        again.wanted = again.wanted || others_sleep(c); // they have not run, or are dead
        if (byte == static_cast<uint8_t>(Frame::resume) &&
            ring.writer.epoch.load(std::memory_order_acquire) != s.in_epoch.load()) {
            s.resume_seen = true;
            if (is_recovering(c)) {
                s.awaits_resume = false; // all in front of it is in the ring, and is not resent
            }
        } else if (byte != static_cast<uint8_t>(Frame::wake) || has_seen_more_than_counted(c)) {
            error = violation(c, fd, Reason::past_library);
            return Taken::failed;
        }
    }
    return taken;
}

void take_present_frames(Connection& c, int fd) {
    ssize_t error = 0;
    take_frames(c, fd, true, error);
}

} // namespace preload::stream
