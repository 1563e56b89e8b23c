// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/connection/stream_internal.hpp"

#include <algorithm>

#include <linux/sockios.h>
#include <netinet/in.h>
#include <sched.h>

#include "preload/base/system.hpp"
#include "preload/connection/table.hpp"
#include "preload/rendezvous/service.hpp"
#include "preload/rules/decide.hpp"
#include "preload/stats/page.hpp"
#include "preload/stats/probes.hpp"
#include "preload/wait/epoll_set.hpp"

namespace preload::stream {

thread_local uint32_t own_sleeps = 0;

using path::Consent;
using path::Direction;
using path::Frame;

ssize_t violation(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    if (!s.broken.exchange(true)) {
        s.reason = Reason::broken;
        s.hold = true;
        c.out_ring().writer.resets = 1;
        stats::refresh(c);
        RSPRELOAD_PROBE(reset, fd, static_cast<int>(Reason::broken));
        // Disconnecting sends a reset.
        const sockaddr none{AF_UNSPEC, {}};
        sys::call(SYS_connect, fd, &none, sizeof(none));
    }
    return -ECONNRESET;
}

namespace {

constexpr size_t max_kernel_parts = 16;

long unread_in_kernel(int fd) {
    int count = 0;
    const long result = sys::ioctl(fd, SIOCINQ, &count);
    return result < 0 ? result : count;
}

ssize_t read_kernel(int fd, Parts& parts, uint64_t limit, int flags) {
    std::array<iovec, max_kernel_parts> buffers;
    msghdr message{};
    message.msg_iov = buffers.data();
    message.msg_iovlen = parts.fill(buffers, limit);
    return sys::call(SYS_recvmsg, fd, &message, (flags & (MSG_PEEK | MSG_TRUNC)) | MSG_DONTWAIT);
}

bool others_sleep(const Connection& c) {
    return c.state.load()->sleepers.load() > own_sleeps ||
           (c.watched.load(std::memory_order_relaxed) && watches_asleep(c));
}

// A frame wakes all threads that sleep on the socket; one that finds it taken sleeps on. They are given some time to
// wake.
void let_others_wake(const Connection& c, int fd) {
    constexpr int max_yields = 200;
    if (others_sleep(c) && unread_in_kernel(fd) > 0) {
        for (int i = 0; i < max_yields && others_sleep(c); ++i) {
            sched_yield();
        }
    }
}

} // namespace

void wake_again(Connection& c) {
    arm(c, POLLIN | POLLOUT, path::by_frame);
    service::ask(c.shared(), 1 - c.out_index());
}

void count_received(Connection& c, uint64_t n) {
    const uint64_t before = c.state.load()->received.fetch_add(n, std::memory_order_relaxed);
    c.in_ring().reader.received.store(before + n, std::memory_order_release);
}

namespace {

// Those that the writer has counted while it stays in the ring: no Frame::resume is among them, and no bytes follow, so
// one call takes them all. Returns how many.
ssize_t take_counted_frames(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    const Direction& ring = c.in_ring();
    std::array<uint8_t, 16> bytes{};
    const uint32_t there = ring.writer.frames.load(std::memory_order_acquire) - s.frames_seen.load();
    // What a worker says of the far end's frames is late.
    if (there == 0 || c.mirrored || ring.writer.epoch.load(std::memory_order_acquire) != s.in_epoch.load()) {
        return 0;
    }
    const long n = sys::recv(fd, bytes.data(), std::min<size_t>(there, bytes.size()), MSG_DONTWAIT);
    if (n <= 0) {
        if (n != -EAGAIN) {
            s.ended = true;
            s.pending_error = static_cast<int>(-n); // which the kernel tells once
        }
        return 0;
    }
    count_received(c, static_cast<uint64_t>(n));
    s.frames_seen.fetch_add(static_cast<uint32_t>(n), std::memory_order_relaxed);
    if (std::any_of(bytes.begin(), bytes.begin() + n,
                    [](uint8_t byte) { return byte != static_cast<uint8_t>(Frame::wake); })) {
        s.reason = Reason::past_library;
        return violation(c, fd);
    }
    return n;
}

} // namespace

Taken take_frames(Connection& c, int fd, bool quietly, ssize_t& error) {
    // Each frame answers a wish of this end, so there are a few. A peer that sends them without an end would keep this
    // thread here.
    constexpr int max_frames = 1024;
    ConnectionState& s = *c.state.load();
    const Direction& ring = c.in_ring();
    Taken taken = Taken::nothing;
    let_others_wake(c, fd);
    const struct Again {
        ~Again() {
            if (taken && c.watched.load(std::memory_order_relaxed)) {
                watches_frames_taken(c);
            }
            if (wanted || (taken && others_sleep(c))) { // who sees the former does not sleep
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
                error = violation(c, fd);
                return Taken::failed;
            }
            if (quietly && ring.writer.frames.load() == s.frames_seen) {
                return taken;
            }
            continue;
        }
        const bool marked = c.mirrored && is_at_mark(fd);
        if (marked) [[unlikely]] {
            if (s.far_record_seen) {
                return taken; // what follows is not frames
            }
            if (const ssize_t record = take_record(c, fd); record != 0) {
                error = record > 0 ? -EAGAIN : record;
                return record > 0 || record == -EAGAIN ? taken : Taken::failed;
            }
        }
        if (s.far_record_seen && is_recovering(c)) [[unlikely]] {
            return taken;
        }
        // Behind the mark of an urgent byte, SIOCINQ sees nothing (tcp(7)); there is something, as was just seen.
        if (quietly && !marked && unread_in_kernel(fd) <= 0) {
            return taken;
        }
        uint8_t byte = 0;
        const long n = sys::recv(fd, &byte, 1, MSG_DONTWAIT);
        if (n <= 0) {
            if (n == 0) {
                s.ended = true;
                return Taken::end;
            }
            error = n;
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
        again.wanted = again.wanted || others_sleep(c); // they did not come about, or are dead
        if (byte == static_cast<uint8_t>(Frame::resume) &&
            ring.writer.epoch.load(std::memory_order_acquire) != s.in_epoch.load()) {
            s.resume_seen = true;
        } else if (byte != static_cast<uint8_t>(Frame::wake)) {
            s.reason = Reason::past_library;
            error = violation(c, fd);
            return Taken::failed;
        }
    }
    return taken;
}

void follow_to(Connection& c, uint32_t epoch) {
    ConnectionState& s = *c.state.load();
    Direction& ring = c.in_ring();
    if ((epoch & 1) != 0 && s.recovery.load() == Recovery::sent) [[unlikely]] {
        s.awaits_resume = true; // the record has said that nothing of the ring was read: all of it is sent again
    }
    s.in_epoch.store(epoch, std::memory_order_release);
    if (s.taken == 0) { // else the peer still has to send something again
        ring.reader.epoch.store(epoch, std::memory_order_release);
    }
    if ((epoch & 1) == 0) {
        s.resume_seen = false;
        s.awaits_resume = false;
        ring.wake.consent.store(s.hold ? Consent::withheld : Consent::given, std::memory_order_release);
    } else if (s.hold && !s.giving_back) {
        ring.reader.request.store(path::request_of(epoch, path::return_to_kernel), std::memory_order_release);
    }
    changed(c);
}

// The reader frees space: whoever writes may sleep for it.
void space_made(Connection& c, int fd) {
    Direction& ring = c.in_ring();
    ConnectionState& s = *c.state.load();
    if (ring.wake.space_wanted.load() == path::nobody) {
        return;
    }
    // Not for every byte: as the kernel, which wakes writers when a third is free.
    const uint64_t left = ring.writer.head.load(std::memory_order_relaxed) - s.in.position;
    if (left > s.in.capacity() / 2) {
        return;
    }
    const uint64_t sleeper = ring.wake.space_wanted.exchange(path::nobody);
    if (sleeper == path::nobody) {
        return;
    }
    stats::woke_peer(c, true);
    RSPRELOAD_PROBE(wake, fd, sleeper);
    if (wake_by_id(c, sleeper)) {
        return;
    }
    s.wake_due.store(true);
    if (s.write_lock.try_acquire()) {
        release_write(c, fd);
    } // else its owner sends the frame as it releases the lock
}

// The reader's part, with the read lock held.

ssize_t read_ring(Connection& c, int fd, Parts& parts, int flags, uint64_t count) {
    ConnectionState& s = *c.state.load();
    Direction& ring = c.in_ring();
    const uint8_t* memory = path::ring_memory(c.segment.load(), 1 - c.out_index());
    const uint64_t total = std::min(count, parts.size());
    path::Cursor at = s.in;
    for (uint64_t left = total; left != 0;) {
        const size_t n = at.contiguous(left);
        if ((flags & MSG_TRUNC) != 0) {
            parts.skip(n);
        } else {
            parts.put(memory + at.offset_of(at.position), n);
        }
        at.position += n;
        left -= n;
    }
    if ((flags & MSG_PEEK) != 0) {
        return static_cast<ssize_t>(total);
    }
    s.in.position = at.position;
    ring.reader.tail.store(at.position);
    s.bytes_in.store(s.bytes_in.load(std::memory_order_relaxed) + total, std::memory_order_relaxed);
    stats::moved_by_path(c, true, total, s.in.capacity());
    if (ring.writer.frames.load(std::memory_order_relaxed) != s.frames_seen) {
        ssize_t ignored = 0;
        (void)take_frames(c, fd, true, ignored); // an unread frame would make a later close a reset
    }
    if (s.sleepers.load() != 0 || s.holders.load(std::memory_order_relaxed) > 1) { // in other processes, too
        want_frame(ring.wake.data_wanted);
    }
    space_made(c, fd);
    return static_cast<ssize_t>(total);
}

namespace {

// In a kernel epoch. 1: the epoch has changed, look again.
ssize_t read_from_kernel(Connection& c, int fd, Parts& parts, int flags, uint32_t epoch) {
    ConnectionState& s = *c.state.load();
    const Direction& ring = c.in_ring();
    const uint64_t position = s.received.load(std::memory_order_relaxed);
    uint64_t limit = 0;
    if (s.far_record_seen && is_recovering(c)) [[unlikely]] {
        return -EAGAIN; // what follows may belong behind what is sent again
    }
    if (is_proving(c)) [[unlikely]] {
        hear(c, fd);
    }
    if (const uint32_t published = ring.writer.epoch.load(std::memory_order_acquire); published != epoch) {
        const uint64_t at = ring.writer.switch_at.load(std::memory_order_acquire);
        if (published - epoch > 2 || at < position) {
            return violation(c, fd);
        }
        if (at == position) {
            follow_to(c, epoch + 1);
            return -ERESTART;
        }
        limit = at - position;
    } else {
        // The writer may switch at any moment, and what it sends behind that are frames. What is there before it was
        // seen not to have switched are bytes.
        long there = unread_in_kernel(fd);
        if (there < 0) {
            return there;
        }
        if (ring.writer.epoch.load(std::memory_order_acquire) != epoch) {
            return -ERESTART;
        }
        if (there == 0) {
            uint8_t byte = 0;
            const long n = sys::recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
            s.ended = s.ended || (n <= 0 && n != -EAGAIN);
            const bool switched = ring.writer.epoch.load(std::memory_order_acquire) != epoch;
            if (n > 0) {
                if (switched || !is_at_mark(fd)) {
                    return -ERESTART;
                }
                if (is_proving(c)) {
                    hear(c, fd);
                }
                if (const ssize_t record = c.mirrored ? take_record(c, fd) : 0; record != 0) {
                    return record > 0 ? -EAGAIN : record;
                }
                there = 1; // an urgent byte hides what is behind it, until the next byte is taken
            } else if (switched) {
                // What was written to the ring meanwhile comes before the end, or the error.
                if (n < 0 && n != -EAGAIN) {
                    s.pending_error = static_cast<int>(-n);
                }
                return -ERESTART;
            } else {
                return n;
            }
        }
        limit = static_cast<uint64_t>(there);
    }
    const ssize_t n = read_kernel(fd, parts, limit, flags);
    if (n > 0) {
        parts.skip(static_cast<uint64_t>(n));
        if ((flags & MSG_PEEK) == 0) {
            count_received(c, static_cast<uint64_t>(n));
            if (s.heard_byte != 0) {
                hear(c, fd);
            }
        }
    }
    s.ended = s.ended || n == 0;
    return n;
}

// The ring is empty, and nothing says that the kernel has more than that. It alone knows that the peer has ended, so
// that it is asked from time to time.
bool kernel_has_nothing(const Connection& c, uint32_t epoch, bool will_sleep) {
    ConnectionState& s = *c.state.load();
    const Direction& ring = c.in_ring();
    if (s.ended || ring.writer.ends.load() != 0 || s.awaits_resume || s.resume_seen ||
        ring.writer.frames.load() != s.frames_seen || ring.writer.epoch.load(std::memory_order_acquire) != epoch) {
        return false;
    }
    if (will_sleep) {
        return true;
    }
    // A program that reads in vain once and then waits is told of an end by waiting. One that polls by reading is not.
    constexpr uint32_t polls_by_reading = 4;
    constexpr uint64_t longer_for_others = 20;
    const uint64_t now = sys::now_ns();
    const uint64_t pause = policy::max_kernel_pause_ns() * (++s.empty_reads < polls_by_reading ? longer_for_others : 1);
    if (now - s.asked_kernel_ns < pause) {
        return true;
    }
    s.asked_kernel_ns = now;
    s.empty_reads = 0;
    return false;
}

} // namespace

ssize_t read_locked(Connection& c, int fd, Parts& parts, int flags, bool will_sleep) {
    ConnectionState& s = *c.state.load();
    for (;;) {
        if (s.broken) {
            return -ECONNRESET;
        }
        if (s.giving_back) [[unlikely]] {
            return -EAGAIN;
        }
        if (s.taken != 0) [[unlikely]] {
            return read_taken(c, parts, flags);
        }
        const uint32_t epoch = s.in_epoch.load(std::memory_order_relaxed);
        if ((epoch & 1) == 0) {
            const ssize_t n = read_from_kernel(c, fd, parts, flags, epoch);
            if (n == -ERESTART) {
                continue;
            }
            if (const int error = n == 0 || n == -EAGAIN ? s.pending_error.exchange(0) : 0; error != 0) {
                return reset_or_end(c, -error);
            }
            return reset_or_end(c, n);
        }
        Direction& ring = c.in_ring();
        uint64_t count = 0;
        if (!s.awaits_resume && !readable(ring, s.in, count)) {
            return violation(c, fd);
        }
        if (count != 0) {
            s.empty_reads = 0;
            return read_ring(c, fd, parts, flags, count);
        }
        if (const int error = s.pending_error.load(); error != 0) {
            s.pending_error = 0;
            return reset_or_end(c, -error);
        }
        ssize_t error = -EAGAIN;
        const Taken taken =
            kernel_has_nothing(c, epoch, will_sleep) ? Taken::nothing : take_frames(c, fd, false, error);
        // What was written before the end, or before the frame, is there now.
        if (!s.awaits_resume && ring.writer.head.load() != s.in.position) {
            if (taken == Taken::failed && !s.broken) {
                s.pending_error = static_cast<int>(-error);
            }
            continue;
        }
        if (s.resume_seen) {
            follow_to(c, epoch + 1);
            continue;
        }
        switch (taken) {
        case Taken::end:
            return is_recovering(c) ? -ECONNRESET : 0; // of what the peer has sent, some was not sent again
        case Taken::failed:
            return reset_or_end(c, error);
        case Taken::frames:
            continue;
        case Taken::nothing:
            if (s.sleepers.load() != 0 || s.holders.load(std::memory_order_relaxed) > 1) { // in other processes, too
                want_frame(ring.wake.data_wanted);
                if (ring.writer.head.load(std::memory_order_seq_cst) != s.in.position) {
                    continue;
                }
            }
            return -EAGAIN;
        }
    }
}

ssize_t reset_or_end(const Connection& c, ssize_t error) {
    const ConnectionState& s = *c.state.load();
    if (error != -ECONNRESET || s.broken || c.segment.load() == nullptr || c.in_ring().writer.resets.load() != 0) {
        return error;
    }
    // Of what the peer has sent by TCP last, its kernel may have dropped some.
    const Direction& in = c.in_ring();
    if (const uint32_t epoch = s.in_epoch.load();
        ((epoch & 1) == 0 || in.writer.epoch.load() != epoch) && s.received.load() < in.writer.sent.load()) {
        return error;
    }
    // The same of what this end has sent: then the peer has had all of it.
    const Direction& out = c.out_ring();
    const bool followed = (s.out_epoch.load() & 1) != 0 && out.reader.epoch.load() == s.out_epoch.load();
    const bool had_all = out.reader.tail.load() == out.writer.head.load() && !has_backlog(s) &&
                         (followed || out.reader.received.load() >= s.bytes_sent_to.load());
    return had_all ? 0 : error;
}

namespace {

ssize_t read_once(Connection& c, int fd, Parts& parts, int flags, bool will_sleep) {
    const ReadSection section(c, fd);
    if (!section) {
        return section.error();
    }
    if (parts.empty()) {
        ConnectionState& s = *c.state.load();
        if (const int error = s.pending_error.exchange(0); error != 0) {
            return -error;
        }
        // Nothing can be read; that there is nothing, or an error, is told all the same.
        uint8_t none = 0;
        follow(c, fd, false);
        return ring_has_bytes(c) ? 0 : sys::recv(fd, &none, 0, MSG_DONTWAIT);
    }
    const ssize_t n = read_locked(c, fd, parts, flags, will_sleep);
    if (n > 0 && (flags & MSG_PEEK) == 0) {
        stats::moved_locked(c, *c.state.load(), true, static_cast<uint64_t>(n));
    }
    return n;
}

} // namespace

ssize_t read_now(Connection& c, int fd, Parts& parts, int flags, bool will_sleep) {
    const ssize_t n = read_once(c, fd, parts, flags, will_sleep);
    if (n == -EAGAIN && is_recovering(c)) [[unlikely]] {
        recover(c, fd);
        return is_recovering(c) ? n : read_once(c, fd, parts, flags, will_sleep);
    }
    return n;
}

ssize_t peek_further(Connection& c, int fd, Parts& parts, int flags, ssize_t peeked) {
    const ReadSection section(c, fd);
    ConnectionState& s = *c.state.load();
    if (!section || s.broken || s.giving_back || s.taken != 0 || s.awaits_resume) {
        return -EAGAIN;
    }
    const Direction& ring = c.in_ring();
    const uint32_t epoch = s.in_epoch.load();
    const uint32_t published = ring.writer.epoch.load(std::memory_order_acquire);
    if (published == epoch) {
        return 0;
    }
    if (published - epoch > 1) {
        return -EAGAIN; // there is a third place
    }
    if ((epoch & 1) == 0) {
        const bool whole = ring.writer.switch_at.load() - s.received.load() == static_cast<uint64_t>(peeked);
        uint64_t count = 0;
        return whole && readable(ring, s.in, count) && count != 0 ? read_ring(c, fd, parts, flags | MSG_PEEK, count)
                                                                  : 0;
    }
    if (ring.writer.head.load() - s.in.position != static_cast<uint64_t>(peeked)) {
        return 0; // some were written in between
    }
    ssize_t error = 0;
    (void)take_frames(c, fd, true, error);
    const long there = s.resume_seen ? unread_in_kernel(fd) : 0;
    if (there <= 0 || ring.writer.epoch.load(std::memory_order_acquire) != published) {
        return 0; // what is there may be frames
    }
    const ssize_t n = read_kernel(fd, parts, static_cast<uint64_t>(there), flags | MSG_PEEK);
    if (n > 0) {
        parts.skip(static_cast<uint64_t>(n));
    }
    return std::max(n, ssize_t{0});
}

void follow(Connection& c, int fd, bool all_frames) {
    ConnectionState& s = *c.state.load();
    while (!s.giving_back) {
        const uint32_t epoch = s.in_epoch.load(std::memory_order_relaxed);
        const Direction& ring = c.in_ring();
        const uint32_t published = ring.writer.epoch.load(std::memory_order_acquire);
        if ((epoch & 1) == 0) {
            if (published == epoch || ring.writer.switch_at.load(std::memory_order_acquire) != s.received.load()) {
                return;
            }
            follow_to(c, epoch + 1);
            continue;
        }
        const bool empty = s.awaits_resume || ring.writer.head.load() == s.in.position;
        if (!empty && !all_frames) {
            return;
        }
        ssize_t error = 0;
        if (published != epoch || c.mirrored || ring.writer.frames.load(std::memory_order_acquire) != s.frames_seen) {
            (void)take_frames(c, fd, true, error);
        }
        const bool still = s.awaits_resume || ring.writer.head.load() == s.in.position;
        if (!s.resume_seen || !still) {
            return;
        }
        follow_to(c, epoch + 1);
    }
}

long unread(Connection& c, int fd) {
    const ReadSection section(c, fd);
    if (!section) {
        return section.error();
    }
    follow(c, fd, false);
    ConnectionState& s = *c.state.load();
    const uint32_t epoch = s.in_epoch.load();
    const Direction& ring = c.in_ring();
    const uint64_t in_ring = ring.writer.head.load() - s.in.position;
    const uint64_t taken = s.taken - s.taken_read;
    if ((epoch & 1) != 0) {
        return static_cast<long>(taken + std::min<uint64_t>(in_ring, path::ring_bytes));
    }
    const long there = unread_in_kernel(fd);
    if (there < 0 || ring.writer.epoch.load(std::memory_order_acquire) == epoch) {
        return there < 0 ? there : static_cast<long>(taken) + there;
    }
    const uint64_t raw = taken + ring.writer.switch_at.load() - s.received.load();
    return static_cast<long>(raw + std::min<uint64_t>(in_ring, path::ring_bytes));
}

bool ring_has_bytes(const Connection& c) {
    const ConnectionState* s = c.state.load(std::memory_order_relaxed);
    return c.segment.load(std::memory_order_relaxed) != nullptr && !s->awaits_resume.load(std::memory_order_relaxed) &&
           c.in_ring().writer.head.load() != c.in_ring().reader.tail.load(std::memory_order_relaxed);
}

namespace {

// By what both ends have published: a lie misleads who waits for the liar.
bool ring_is_half_empty(const Direction& ring) {
    const uint32_t area = std::min(ring.writer.grow_area.load(std::memory_order_relaxed), path::areas - 1);
    return ring.writer.head.load(std::memory_order_relaxed) - ring.reader.tail.load() <= path::area_sizes[area] / 2;
}

} // namespace

bool look_in_memory(const Connection& c, short wanted, short& events) {
    const ConnectionState& s = *c.state.load(std::memory_order_relaxed);
    constexpr short in_memory = POLLIN | POLLRDNORM | POLLOUT | POLLWRNORM | POLLRDHUP;
    if ((wanted & ~in_memory) != 0 || c.segment.load(std::memory_order_relaxed) == nullptr || s.ended || s.broken ||
        s.hold || s.pending_error != 0 || s.giving_back || s.awaits_resume || s.taken != 0) {
        return false;
    }
    const Direction& in = c.in_ring();
    const uint32_t in_epoch = s.in_epoch.load(std::memory_order_acquire);
    if ((in_epoch & 1) == 0 || in.writer.epoch.load(std::memory_order_acquire) != in_epoch ||
        in.writer.frames.load(std::memory_order_relaxed) != s.frames_seen) {
        return false;
    }
    events = 0;
    if ((wanted & (POLLOUT | POLLWRNORM)) != 0) {
        const Direction& out = c.out_ring();
        const uint32_t out_epoch = s.out_epoch.load(std::memory_order_acquire);
        if ((out_epoch & 1) == 0 || !ring_is_half_empty(out) ||
            path::requested_epoch(out.reader.request.load(std::memory_order_acquire)) == out_epoch) {
            return false;
        }
        events = POLLOUT | POLLWRNORM;
    }
    if ((wanted & (POLLIN | POLLRDNORM)) != 0 && in.writer.head.load() != in.reader.tail.load()) {
        events |= POLLIN | POLLRDNORM;
    }
    return true;
}

bool ring_has_space(const Connection& c) {
    const ConnectionState* s = c.state.load(std::memory_order_relaxed);
    return c.segment.load(std::memory_order_relaxed) != nullptr &&
           (s->out_epoch.load(std::memory_order_relaxed) & 1) != 0 && // else the kernel has the space, or has none
           ring_is_half_empty(c.out_ring());
}

bool more_may_come(const Connection& c, ssize_t n) {
    const ConnectionState* s = c.state.load();
    const uint32_t epoch = s->in_epoch.load();
    return c.segment.load() != nullptr && (epoch & 1) != 0 && !s->ended &&
           c.in_ring().writer.epoch.load(std::memory_order_acquire) == epoch && // else the rest comes by the kernel
           c.in_ring().writer.head.load() - c.in_ring().reader.tail.load() == static_cast<uint64_t>(n);
}

} // namespace preload::stream
