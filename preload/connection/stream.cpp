// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/connection/stream_internal.hpp"

#include <algorithm>
#include <utility>

#include <netinet/in.h>

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

void reset(Connection& c, int fd, Reason reason) {
    ConnectionState& s = *c.state.load();
    if (!s.broken.exchange(true)) {
        s.reason = reason;
        s.sound_to = reason == Reason::past_library ? c.in_ring().writer.head.load() : 0;
        s.hold = true;
        c.out_ring().writer.resets = 1;
        stats::refresh(c);
        RSPRELOAD_PROBE(reset, fd, static_cast<int>(reason));
        // Disconnecting sends a reset. Another thread may have closed the fd, which may be another socket's by now,
        // while another fd keeps the connection open.
        const int own = table::connection(fd) == &c ? fd : c.fd.load();
        if (table::connection(own) == &c) {
            const sockaddr none{AF_UNSPEC, {}};
            sys::call(SYS_connect, own, &none, sizeof(none));
        }
    }
}

ssize_t violation(Connection& c, int fd, Reason reason) {
    reset(c, fd, reason);
    return -ECONNRESET;
}

namespace {

constexpr size_t max_kernel_parts = 16;

// more: the first buffers are full, and there are others.
ssize_t read_kernel(int fd, Parts& parts, uint64_t limit, int flags, bool& more) {
    std::array<iovec, max_kernel_parts> buffers;
    msghdr message{};
    message.msg_iov = buffers.data();
    message.msg_iovlen = parts.fill(buffers, limit);
    const uint64_t filled = Parts(buffers.data(), message.msg_iovlen).size();
    const long n = sys::call(SYS_recvmsg, fd, &message, (flags & (MSG_PEEK | MSG_TRUNC)) | MSG_DONTWAIT);
    more = n > 0 && static_cast<uint64_t>(n) == filled && filled < std::min(limit, parts.size());
    return n;
}

} // namespace

void follow_to(Connection& c, uint32_t epoch) {
    ConnectionState& s = *c.state.load();
    Direction& ring = c.in_ring();
    if ((epoch & 1) != 0 && s.recovery.load() == Recovery::sent && !s.sends_no_record) [[unlikely]] {
        s.awaits_resume = true; // by the record, nothing of the ring was read: all of it is resent
    }
    s.in_epoch.store(epoch, std::memory_order_release);
    // A byte past the peer's library may be in front of the switch, which is at a position of TCP; and from another
    // host, a frame may have been reported with the bytes in front of it.
    s.kernel_readable.store((epoch & 1) != 0, std::memory_order_relaxed);
    if (s.taken == 0) { // else the peer still has to resend something
        ring.reader.epoch.store(epoch, std::memory_order_release);
    }
    if ((epoch & 1) == 0) {
        s.resume_seen = false;
        s.awaits_resume = false;
        ring.wake.consent.store(s.hold ? Consent::withheld : Consent::given, std::memory_order_release);
    } else if (s.hold && !s.giving_back) {
        ring.reader.request.store(path::request_of(epoch, path::return_to_kernel), std::memory_order_release);
    }
    stats::refresh(c);
    changed(c);
}

// The reader frees space: a writer may sleep for it.
void space_made(Connection& c, int fd) {
    Direction& ring = c.in_ring();
    ConnectionState& s = *c.state.load();
    if (ring.wake.space_wanted.load() == path::nobody) {
        return;
    }
    // Not for every byte: like the kernel, which wakes writers when a third is free.
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

// The reader's part, under the read lock.

ssize_t read_ring(Connection& c, int fd, Parts& parts, int flags, uint64_t count) {
    ConnectionState& s = *c.state.load();
    Direction& ring = c.in_ring();
    const uint8_t* memory = path::ring_memory(c.segment.load(), 1 - c.out_index());
    const bool peeks = (flags & MSG_PEEK) != 0;
    path::Cursor at = s.in;
    uint64_t total = 0;
    do { // also bytes in the next area, after a resize
        const uint64_t now = std::min(count, parts.size());
        for (uint64_t left = now; left != 0;) {
            const size_t n = at.contiguous(std::min(left, path::copied_at_once));
            if ((flags & MSG_TRUNC) != 0) {
                parts.skip(n);
            } else {
                parts.put(memory + at.offset_of(at.position), n);
            }
            at.position += n;
            left -= n;
            if (!peeks) {
                s.in = at;
                ring.reader.tail.store(at.position);
                space_made(c, fd);
            }
        }
        total += now;
        // The next read handles invalid values, and the end of a connection that was reset.
    } while (!parts.empty() && !s.broken && readable(ring, at, count) && count != 0);
    if (peeks) {
        return static_cast<ssize_t>(total);
    }
    s.bytes_in.store(s.bytes_in.load(std::memory_order_relaxed) + total, std::memory_order_relaxed);
    if (ring.writer.frames.load(std::memory_order_relaxed) != s.frames_seen) {
        take_present_frames(c, fd); // an unread frame would turn a later close into a reset
    }
    if (s.sleepers.load() != 0 || s.holders.load(std::memory_order_relaxed) > 1) { // in other processes, too
        want_frame(ring.wake.data_wanted);
    }
    return static_cast<ssize_t>(total);
}

namespace {

// In a kernel epoch. -ERESTART: the epoch has changed, try again. more: there may be bytes behind these that a read of
// the kernel would have returned as well.
ssize_t read_from_kernel(Connection& c, int fd, Parts& parts, int flags, uint32_t epoch, bool& more) {
    ConnectionState& s = *c.state.load();
    const Direction& ring = c.in_ring();
    uint64_t limit = 0;
    if (s.far_record_seen && is_recovering(c)) [[unlikely]] {
        return -EAGAIN; // what follows may belong behind resent bytes
    }
    if (is_proving(c)) [[unlikely]] {
        receive_urgent(c, fd);
    }
    const uint64_t position = s.received.load(std::memory_order_relaxed); // includes a received urgent byte
    if (const uint32_t published = published_epoch(c); published != epoch) {
        const uint64_t at = ring.writer.switch_at.load(std::memory_order_acquire);
        if (published - epoch > 2 || at < position) {
            return violation(c, fd, at < position && !c.mirrored ? Reason::past_library : Reason::broken);
        }
        if (at == position) {
            follow_to(c, epoch + 1);
            return -ERESTART;
        }
        limit = at - position;
    } else {
        // The writer may switch at any moment, and what it sends behind the switch are frames. What is there before a
        // check finds no switch are bytes.
        long there = unread_in_kernel(fd);
        if (there < 0) {
            return there;
        }
        if (published_epoch(c) != epoch) {
            return -ERESTART;
        }
        if (there == 0) {
            uint8_t byte = 0;
            const long n = sys::recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
            if (n <= 0 && n != -EAGAIN) {
                s.ended = true; // never false again: the service, without a lock, may have just set it
            }
            const bool switched = published_epoch(c) != epoch;
            if (n > 0) {
                if (switched || !is_at_mark(fd)) {
                    return -ERESTART;
                }
                if (is_proving(c)) {
                    receive_urgent(c, fd);
                }
                if (const ssize_t record = c.mirrored ? take_record(c, fd) : 0; record != 0) {
                    return record > 0 ? -EAGAIN : record;
                }
                there = std::max(unread_with_hidden(c, fd), 1L);
                if (published_epoch(c) != epoch) {
                    return -ERESTART;
                }
            } else if (switched) {
                // Bytes written to the ring meanwhile come before EOF or the error.
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
    bool others = false;
    const ssize_t n = read_kernel(fd, parts, limit, flags, others);
    if (n > 0) {
        parts.skip(static_cast<uint64_t>(n));
        if ((flags & MSG_PEEK) == 0) {
            count_received(c, static_cast<uint64_t>(n));
            if (s.urgent_byte != 0) {
                receive_urgent(c, fd);
            }
            more = others || published_epoch(c) != epoch || (c.mirrored && is_at_mark(fd));
        }
    }
    if (n == 0) {
        s.ended = true;
    }
    return n;
}

// The ring is empty, and nothing indicates that the kernel has more. Only the kernel reports that the peer has ended,
// so it is polled from time to time.
bool kernel_has_nothing(const Connection& c, uint32_t epoch, bool will_sleep) {
    ConnectionState& s = *c.state.load();
    const Direction& ring = c.in_ring();
    if (s.kernel_readable || s.ended || s.read_shut || ring.writer.ends.load() != 0 || s.awaits_resume ||
        s.resume_seen || ring.writer.frames.load() != s.frames_seen ||
        ring.writer.epoch.load(std::memory_order_acquire) != epoch) {
        return false;
    }
    if (will_sleep) {
        return true;
    }
    // A program that reads in vain once and then waits sees EOF by waiting. One that polls by reading does not.
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

// What is in the ring when the reader finds a byte past the peer's library: that is in front of it, and sound.
uint64_t sound_bytes(Connection& c) {
    ConnectionState& s = *c.state.load();
    uint64_t count = 0;
    return readable(c.in_ring(), s.in, count) && s.in.position < s.sound_to
               ? std::min(count, s.sound_to - s.in.position)
               : 0;
}

bool may_read_broken(Connection& c) {
    const ConnectionState& s = *c.state.load();
    return s.reason == Reason::past_library && (s.in_epoch.load() & 1) != 0 && !s.awaits_resume && !s.giving_back &&
           s.taken == 0 && sound_bytes(c) != 0;
}

// further: this call has read something, so it ends at the mark of an urgent byte, like the kernel's (tcp(7)).
ssize_t read_piece(Connection& c, int fd, Parts& parts, int flags, bool will_sleep, bool further, bool& more) {
    ConnectionState& s = *c.state.load();
    for (;;) {
        if (s.broken) {
            return may_read_broken(c) ? read_ring(c, fd, parts, flags, sound_bytes(c)) : -ECONNRESET;
        }
        if (s.giving_back && !may_read_taken(c)) [[unlikely]] {
            return -EAGAIN;
        }
        if (s.taken != 0) [[unlikely]] {
            const ssize_t n = read_taken(c, parts, flags);
            more = (flags & MSG_PEEK) == 0 && n > 0 && s.taken == 0;
            return n;
        }
        const uint32_t epoch = s.in_epoch.load(std::memory_order_relaxed);
        if ((epoch & 1) == 0) {
            if (further && !c.mirrored && is_at_mark(fd)) { // a mirrored one's marks are the library's
                return -EAGAIN;
            }
            const ssize_t n = read_from_kernel(c, fd, parts, flags, epoch, more);
            if (n == -ERESTART) {
                continue;
            }
            if (const int error = n == 0 || n == -EAGAIN ? s.pending_error.exchange(0) : 0; error != 0) {
                return reset_or_end(c, -error);
            }
            if (n == 0 && lacks_resent_bytes(c)) {
                return violation(c, fd, Reason::fabric_lost);
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
            const ssize_t n = read_ring(c, fd, parts, flags, count);
            more = (flags & MSG_PEEK) == 0 && published_epoch(c) != epoch; // in the kernel
            return n;
        }
        if (const int error = s.pending_error.load(); error != 0) {
            s.pending_error = 0;
            return reset_or_end(c, -error);
        }
        ssize_t error = -EAGAIN;
        const Taken taken =
            kernel_has_nothing(c, epoch, will_sleep) ? Taken::nothing : take_frames(c, fd, false, error);
        // Bytes written before EOF, or before the frame, are visible now.
        const bool at_end = taken == Taken::end || taken == Taken::failed;
        if (!s.awaits_resume && (ring.writer.head.load() != s.in.position || (at_end && take_held(c)))) {
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
            if (is_cut_off(c)) {
                begin_recovery(c);
                service::go_on_with(c);
            }
            return is_recovering(c) ? -EAGAIN : 0; // bytes of the peer may be missing: see recover()
        case Taken::failed:
            return reset_or_end(c, error);
        case Taken::frames:
            continue;
        case Taken::nothing:
            if (s.sleepers.load() != 0 || s.holders.load(std::memory_order_relaxed) > 1) { // in other processes, too
                want_frame(ring.wake.data_wanted);
                if (!s.awaits_resume && ring.writer.head.load(std::memory_order_seq_cst) != s.in.position) {
                    continue;
                }
            }
            return -EAGAIN;
        }
    }
}

} // namespace

// An edge-triggered program (epoll(7)) takes a short read as the end of the data. So a read continues behind a switch
// or an urgent byte.
ssize_t read_locked(Connection& c, int fd, Parts& parts, int flags, bool will_sleep) {
    bool more = false;
    ssize_t total = read_piece(c, fd, parts, flags, will_sleep, false, more);
    while (total > 0 && std::exchange(more, false) && !parts.empty()) {
        const ssize_t n = read_piece(c, fd, parts, flags, false, true, more);
        if (n < 0 && n != -EAGAIN) {
            c.state.load()->pending_error = static_cast<int>(-n); // which the kernel reports once
        }
        total += std::max(n, ssize_t{0});
    }
    return total;
}

ssize_t reset_or_end(const Connection& c, ssize_t error) {
    const ConnectionState& s = *c.state.load();
    if (error != -ECONNRESET || s.broken || c.segment.load() == nullptr || c.in_ring().writer.resets.load() != 0) {
        return error;
    }
    // Only the far end's worker knows that nothing is missing, and after a recovery nobody.
    const path::MirrorFields& mirror = c.shared().mirror;
    if (s.recovered ||
        (c.mirrored && mirror.far_closed.load() == 0 && mirror.stage.load() < path::MirrorFields::ended)) {
        return error;
    }
    const Direction& in = c.in_ring();
    // A far end that has left the fabric, and not closed there, can say no more by it; no frame is sent to it any more.
    if (c.mirrored && ((published_epoch(c) | s.in_epoch.load() | s.out_epoch.load()) & 1) == 0 && !s.resume_due &&
        in.writer.ends.load() != path::ends_whole) {
        return error;
    }
    // The peer's kernel may have dropped some of the peer's last bytes by TCP.
    if (const uint32_t epoch = s.in_epoch.load();
        ((epoch & 1) == 0 || in.writer.epoch.load() != epoch) && s.received.load() < in.writer.sent.load()) {
        return error;
    }
    // The same for this end's bytes: then the peer has received all of them.
    const Direction& out = c.out_ring();
    const bool followed = (s.out_epoch.load() & 1) != 0 && out.reader.epoch.load() == s.out_epoch.load();
    const bool holds = (s.out_epoch.load() & 1) != 0 && s.held_since_ns != 0;
    const bool had_all = out.reader.tail.load() == out.writer.head.load() && !holds && !has_backlog(s) &&
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
        // Nothing can be read, but EAGAIN or an error is reported all the same.
        uint8_t none = 0;
        follow(c, fd, false);
        return ring_has_bytes(c) ? 0 : sys::recv(fd, &none, 0, MSG_DONTWAIT);
    }
    ConnectionState& s = *c.state.load();
    const uint64_t before = s.bytes_in.load(std::memory_order_relaxed);
    const ssize_t n = read_locked(c, fd, parts, flags, will_sleep);
    if (n > 0 && (flags & MSG_PEEK) == 0) {
        const uint64_t by_path = s.bytes_in.load(std::memory_order_relaxed) - before;
        stats::moved_locked(c, s, true, static_cast<uint64_t>(n), by_path, s.in.capacity());
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
    const uint32_t published = published_epoch(c);
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
        return 0; // bytes were written in between
    }
    take_present_frames(c, fd);
    const long there = s.resume_seen ? unread_in_kernel(fd) : 0;
    if (there <= 0 || published_epoch(c) != published) {
        return 0; // these may be frames
    }
    bool others = false;
    const ssize_t n = read_kernel(fd, parts, static_cast<uint64_t>(there), flags | MSG_PEEK, others);
    if (n > 0) {
        parts.skip(static_cast<uint64_t>(n));
    }
    return std::max(n, ssize_t{0});
}

void follow(Connection& c, int fd, bool all_frames, bool if_noted) {
    ConnectionState& s = *c.state.load();
    while (!s.giving_back) {
        const uint32_t epoch = s.in_epoch.load(std::memory_order_relaxed);
        const Direction& ring = c.in_ring();
        const uint32_t published = published_epoch(c);
        if ((epoch & 1) == 0) {
            if (published == epoch) {
                return;
            }
            const uint64_t at = ring.writer.switch_at.load(std::memory_order_acquire);
            if (at < s.received.load() && !c.mirrored && !s.recovered) {
                reset(c, fd, Reason::past_library); // bytes in front of the switch were not counted
            }
            if (at != s.received.load()) {
                return;
            }
            follow_to(c, epoch + 1);
            continue;
        }
        const bool empty = s.awaits_resume || ring.writer.head.load() == s.in.position;
        if (!empty && !all_frames) {
            return;
        }
        if (published != epoch || (c.mirrored && !if_noted) || s.kernel_readable ||
            ring.writer.frames.load(std::memory_order_acquire) != s.frames_seen) {
            take_present_frames(c, fd);
        }
        const bool still = s.awaits_resume || ring.writer.head.load() == s.in.position;
        if (!s.resume_seen || !still) {
            return;
        }
        follow_to(c, epoch + 1);
    }
}

} // namespace preload::stream
