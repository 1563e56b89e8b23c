// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/connection/stream_internal.hpp"

#include <sys/mman.h>

#include "preload/base/system.hpp"
#include "preload/connection/table.hpp"
#include "preload/rendezvous/service.hpp"
#include "preload/stats/page.hpp"
#include "preload/stats/probes.hpp"

namespace preload::stream {

using path::Direction;
using path::Frame;

Section::Section(Connection& c, int fd, OwnerLock& lock, bool waits) : c_(c), fd_(fd), lock_(lock) {
    if (!(waits ? lock.acquire() : lock.try_acquire())) {
        error_ = interrupted;
        return;
    }
    const ConnectionState* state = c.state.load();
    if (table::connection(fd) != &c || state == nullptr ||
        (&lock != &state->read_lock && &lock != &state->write_lock) ||
        (state->gate.load(std::memory_order_acquire) & gate::careful) == 0) {
        error_ = gone;
    } else if (c.segment.load() == nullptr) {
        error_ = elsewhere; // another process of this end has upgraded it
    }
    if (error_ != 0) {
        lock.release();
    }
}

// Counts bytes given to the kernel. After a reset, the count shows the peer whether it has received all of them.
void count_sent(Connection& c, uint64_t n) {
    ConnectionState& s = *c.state.load();
    const uint64_t before = s.sent.fetch_add(n, std::memory_order_relaxed);
    s.kernel_more_out.fetch_sub(n, std::memory_order_relaxed); // the call that returns them counts them
    c.out_ring().writer.sent.store(before + n, std::memory_order_relaxed);
}

namespace {

constexpr size_t max_kernel_parts = 16;

// The same for the program's bytes, not frames.
void count_bytes_sent(Connection& c, uint64_t n) {
    count_sent(c, n);
    ConnectionState& s = *c.state.load();
    s.bytes_sent_to.store(s.sent.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

} // namespace

void count_written_by_kernel(Connection& c, int fd, uint64_t n) {
    if (const WriteSection section(c, fd); section) {
        count_bytes_sent(c, n);
    }
}

namespace {

// Sends a frame by TCP. The count goes first: a reader that sees it expects the frame. An end that is closed, and has
// read all bytes, gets none: it waits for frames that were counted before it published that.
ssize_t send_frame(Connection& c, int fd, Frame frame) {
    ConnectionState& s = *c.state.load();
    Direction& ring = c.out_ring();
    // POLLHUP, POLLERR after the peer's end: sending would consume an error that the program must get.
    if (pollfd one{fd, 0, 0}; s.ended && sys::poll(&one, 1, 0) > 0) {
        return -EPIPE;
    }
    ring.writer.frames.fetch_add(1);
    if (c.in_ring().writer.ends.load() == path::ends_whole) {
        ring.writer.frames.fetch_sub(1, std::memory_order_relaxed);
        return -EPIPE;
    }
    const auto byte = static_cast<uint8_t>(frame);
    const long n = sys::send(fd, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n == 1) {
        count_sent(c, 1);
        changed(c);
        return 0;
    }
    ring.writer.frames.fetch_sub(1, std::memory_order_relaxed);
    if (n != -EAGAIN) {
        s.ended = true;
        if (n != -EPIPE) {
            s.pending_error = static_cast<int>(-n); // for the program
        }
    }
    return n;
}

void wake_armed(Connection& c, int fd) {
    Direction& ring = c.out_ring();
    const uint64_t sleeper = ring.wake.data_wanted.exchange(path::nobody);
    if (sleeper == path::nobody) {
        return;
    }
    stats::woke_peer(c, false);
    RSPRELOAD_PROBE(wake, fd, sleeper);
    if (!wake_by_id(c, sleeper) && (c.mirrored || send_frame(c, fd, Frame::wake) == -EAGAIN)) {
        // Bytes from before the switch fill the kernel's queue: the reader has those to read, and is awake.
        want_frame(ring.wake.data_wanted);
    }
}

} // namespace

void data_written(Connection& c, int fd) {
    const ConnectionState& s = *c.state.load();
    if (c.out_ring().wake.data_wanted.load() != path::nobody) {
        wake_armed(c, fd);
    }
    // Who armed an id may not sleep on it any more.
    if (s.unread_due_ns.load(std::memory_order_relaxed) == 0 ||
        s.unread_watcher.load(std::memory_order_relaxed) != service::own_name()) [[unlikely]] {
        watch_unread(c);
    }
}

namespace {

// Given-back bytes go in front of those that the reader has not read in the ring.
ssize_t flush_given_back(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    uint8_t*& area = c.give_back[c.out_index()];
    if (area == nullptr) {
        area = path::map_give_back(c.segment.load(), c.out_index());
    }
    while (s.give_from.load() != s.give_to.load()) {
        const uint64_t from = s.give_from;
        const long n =
            area != nullptr ? sys::send(fd, area + from, s.give_to - from, MSG_DONTWAIT | MSG_NOSIGNAL) : -ENOMEM;
        if (n < 0) {
            return n;
        }
        count_bytes_sent(c, static_cast<uint64_t>(n));
        s.give_from += static_cast<uint64_t>(n);
    }
    sys::call(SYS_madvise, area, path::give_back_bytes, MADV_REMOVE); // frees the memory
    return 0;
}

path::Cursor backlog_cursor(const ConnectionState& s) {
    path::Cursor at = s.backlog_from.load() < s.out.base ? s.out_before : s.out;
    at.position = s.backlog_from;
    return at;
}

} // namespace

size_t next_of_backlog(const ConnectionState& s) {
    const uint64_t from = s.backlog_from;
    const uint64_t end = from < s.out.base ? std::min(s.backlog_to.load(), s.out.base) : s.backlog_to.load();
    return backlog_cursor(s).contiguous(end - from);
}

size_t offset_of_backlog(const ConnectionState& s) { return backlog_cursor(s).offset_of(s.backlog_from); }

ssize_t flush_due(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    if (is_recovering(c)) [[unlikely]] {
        return -EAGAIN;
    }
    if (s.resume_due) {
        if (!far_end_knows(c)) {
            return -EAGAIN; // until the worker reports it
        }
        // The kernel of a peer that was killed answers with a reset, which ends what it is still about to transmit.
        if (!has_backlog(s) && peer_has_gone(c, fd)) {
            return -EPIPE;
        }
        if (const ssize_t result = send_frame(c, fd, Frame::resume); result < 0) {
            return result;
        }
        s.resume_due = false;
    }
    if (s.give_from.load() != s.give_to.load()) {
        if (const ssize_t result = flush_given_back(c, fd); result < 0) {
            return result;
        }
    }
    const uint8_t* memory = path::ring_memory(c.segment.load(), c.out_index());
    while (s.backlog_from.load() != s.backlog_to.load()) {
        const long n = sys::send(fd, memory + offset_of_backlog(s), next_of_backlog(s), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0) {
            return n;
        }
        count_bytes_sent(c, static_cast<uint64_t>(n));
        s.backlog_from += static_cast<uint64_t>(n);
    }
    return 0;
}

void release_write(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    for (;;) {
        if (s.wake_due.load(std::memory_order_relaxed) && s.wake_due.exchange(false)) {
            wake_by_tcp(c, fd);
        }
        s.write_lock.release();
        if (!s.wake_due.load() || !s.write_lock.try_acquire()) {
            return;
        }
    }
}

void wake_by_tcp(Connection& c, int fd) {
    if (!far_end_knows(c) || is_recovering(c)) {
        c.shared().mirror.frames = 1; // until it does
        send_wanted_frame(c, fd);     // if it just did, no notification follows
    } else if ((c.state.load()->out_epoch.load() & 1) != 0) {
        if (!peer_has_gone(c, fd)) { // as in flush_due()
            send_frame(c, fd, Frame::wake);
        }
    } else {
        flush_due(c, fd); // Frame::resume may wait for a next byte that never comes
    }
}

void send_wanted_frame(Connection& c, int fd) {
    std::atomic<uint32_t>& wanted = c.shared().mirror.frames;
    if (wanted.load() == 0 || !far_end_knows(c) || is_recovering(c)) {
        return; // this is called again when it does
    }
    wanted = 0;
    if (pollfd one{fd, POLLRDHUP, 0}; c.shared().mirror.far_closed.load() != 0 || sys::poll(&one, 1, 0) != 0) {
        return; // it would be answered with a reset
    }
    if ((c.state.load()->out_epoch.load() & 1) != 0) {
        send_frame(c, fd, Frame::wake);
    } else {
        flush_due(c, fd); // which wakes as well
    }
}

bool can_wait_for_space(const Connection& c) {
    const ConnectionState& s = *c.state.load();
    return (s.in_epoch.load() & 1) != 0 && !s.awaits_resume &&
           c.in_ring().writer.epoch.load(std::memory_order_acquire) == s.in_epoch.load();
}

namespace {

// A full ring continues in the next area, if there is one and memory for it. Returns the space there.
uint64_t resize(Connection& c) {
    ConnectionState& s = *c.state.load();
    Direction& ring = c.out_ring();
    if (!may_grow(ring, s.out) || !path::populate(c.segment.load(), c.out_index(), s.out.area + 1)) {
        return 0;
    }
    const path::Cursor before = s.out;
    if (!grow(ring, s.out)) {
        return 0;
    }
    s.out_before = before;
    return s.out.capacity();
}

// The space in the ring, which is resized if there is none. Negative: -errno.
ssize_t space_of(Connection& c, int fd, uint64_t& space) {
    ConnectionState& s = *c.state.load();
    if (!writable(c.out_ring(), s.out, space)) {
        return violation(c, fd);
    }
    if (space == 0) {
        push_held(c, fd);
        space = resize(c);
    }
    if (space == 0) {
        stats::blocked(c);
        note_full(c);
        return -EAGAIN;
    }
    return 0;
}

void count_in_ring(ConnectionState& s, uint64_t n) {
    s.bytes_out.store(s.bytes_out.load(std::memory_order_relaxed) + n,
                      std::memory_order_relaxed); // under the write lock
    s.out.position += n;
}

// The first buffers. With Frame::resume in front, if it is due: in one call, so that after the peer's end the kernel's
// result is about the program's own bytes. all: the kernel has taken all of these.
ssize_t write_some_to_kernel(Connection& c, int fd, Parts& parts, int flags, bool& all) {
    ConnectionState& s = *c.state.load();
    if (s.resume_due && (flags & MSG_ZEROCOPY) != 0) [[unlikely]] { // its byte would be sent from a stack that is gone
        if (const ssize_t error = flush_due(c, fd); error < 0) {
            return error == -EPIPE ? write_to_gone_peer(fd, flags) : error;
        }
    }
    std::array<iovec, max_kernel_parts + 1> buffers;
    auto resume = static_cast<uint8_t>(Frame::resume);
    const bool due = s.resume_due;
    if (due && !far_end_knows(c)) {
        // POLLHUP, POLLERR: nothing goes to the far end any more that it could misunderstand.
        if (pollfd one{fd, 0, 0}; sys::poll(&one, 1, 0) > 0) {
            return write_to_gone_peer(fd, flags);
        }
        s.refused = true;
        return -EAGAIN;
    }
    std::array<iovec, max_kernel_parts> data;
    if (parts.empty()) {
        flags &= ~MSG_OOB; // of nothing: else Frame::resume would be the urgent byte
    }
    const size_t count = parts.fill(data, UINT64_MAX);
    const uint64_t filled = Parts(data.data(), count).size();
    buffers[0] = {&resume, sizeof(resume)};
    std::copy_n(data.begin(), count, buffers.begin() + 1);
    msghdr message{};
    message.msg_iov = due ? buffers.data() : buffers.data() + 1;
    message.msg_iovlen = count + (due ? 1 : 0);
    if (due) {
        c.out_ring().writer.frames.fetch_add(1, std::memory_order_release);
    }
    flags |= s.cork.load(std::memory_order_relaxed) != 0 ? MSG_MORE : 0; // the kernel's option is off, see gate.cpp
    long n =
        sys::call(SYS_sendmsg, fd, &message, (flags & (MSG_NOSIGNAL | MSG_MORE | kernel_send_flags)) | MSG_DONTWAIT);
    if (due && n <= 0) {
        c.out_ring().writer.frames.fetch_sub(1, std::memory_order_relaxed);
    }
    if (n <= 0) {
        return n;
    }
    (due && n == 1 ? count_sent : count_bytes_sent)(c, static_cast<uint64_t>(n));
    note_held_by_kernel(s, (flags & MSG_MORE) != 0);
    if (due) {
        s.resume_due = false;
        --n;
    }
    parts.skip(static_cast<uint64_t>(n));
    all = static_cast<uint64_t>(n) == filled;
    return n != 0 || parts.empty() ? n : -EAGAIN;
}

ssize_t write_kernel(Connection& c, int fd, Parts& parts, int flags) {
    ssize_t total = 0;
    for (bool all = false;;) {
        // The error behind a part is the next call's, and so is its SIGPIPE.
        const ssize_t n = write_some_to_kernel(c, fd, parts, total != 0 ? flags | MSG_NOSIGNAL : flags, all);
        if (n < 0 && total != 0) {
            if (n != -EAGAIN && n != -EPIPE) {
                c.state.load()->pending_error = static_cast<int>(-n); // which the kernel reports once
            }
            return total;
        }
        if (n < 0 || !all || parts.empty()) {
            return total + n;
        }
        total += n;
    }
}

// For the second end to switch, if its program only sends: the first end may never write, and this one may never read.
// Of a far end, the service switches without being asked, see attend().
void help_to_switch(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    if (c.out_index() == 0 || ((s.out_epoch.load() | s.in_epoch.load()) & 1) != 0 || s.hold || is_recovering(c)) {
        return;
    }
    if ((c.in_ring().writer.epoch.load(std::memory_order_acquire) & 1) != 0) {
        if (s.read_lock.try_acquire()) {
            follow(c, fd, false);
            s.read_lock.release();
            advance_out(c);
        }
        return;
    }
    if (!c.mirrored) {
        ask_to_switch(c);
    }
}

// Whether the next byte goes by the kernel: 1, 0, or -errno.
ssize_t choose_kernel(Connection& c, int fd, int flags) {
    ConnectionState& s = *c.state.load();
    if (s.broken) {
        return -ECONNRESET;
    }
    if (s.end_due) [[unlikely]] {
        return refuse_write(flags);
    }
    if (is_recovering(c)) [[unlikely]] {
        return -EAGAIN;
    }
    advance_out(c);
    if ((s.out_epoch.load() & 1) == 0) {
        help_to_switch(c, fd);
    }
    if ((s.out_epoch.load() & 1) != 0) {
        return 0;
    }
    if (const int error = s.pending_error.load(); error != 0) {
        s.pending_error = 0;
        return -error;
    }
    if (!has_backlog(s)) {
        return 1;
    }
    const ssize_t due = flush_due(c, fd);
    return due == -EPIPE ? write_to_gone_peer(fd, flags) : due < 0 ? due : 1;
}

} // namespace

ssize_t write_locked(Connection& c, int fd, Parts& parts, int flags) {
    ConnectionState& s = *c.state.load();
    ssize_t by_kernel = choose_kernel(c, fd, flags);
    if (by_kernel == 0 && (flags & kernel_send_flags) != 0) [[unlikely]] {
        return_out(c, false);
        by_kernel = choose_kernel(c, fd, flags);
    }
    if (by_kernel != 0) {
        return by_kernel < 0 ? by_kernel : write_kernel(c, fd, parts, flags);
    }
    uint64_t space = 0;
    if (parts.empty()) {
        return 0;
    }
    if (const ssize_t error = space_of(c, fd, space); error < 0) {
        return error;
    }
    uint8_t* memory = path::ring_memory(c.segment.load(), c.out_index());
    uint64_t total = 0;
    do { // a write for which the smallest area is too small goes on in the next one, also if it does not wait
        const uint64_t now = std::min(space, parts.size());
        const bool holds = parts.size() <= space && may_hold(c, now, flags);
        for (uint64_t left = now; left != 0;) {
            const size_t n = s.out.contiguous(std::min(left, path::copied_at_once));
            parts.get(memory + s.out.offset_of(s.out.position), n);
            left -= n;
            count_in_ring(s, n);
            if (!holds) {
                publish(c, fd);
            }
        }
        if (holds) [[unlikely]] {
            hold(c);
        }
        total += now;
    } while (!parts.empty() && s.out.area == 0 && (space = resize(c)) != 0);
    return static_cast<ssize_t>(total);
}

ssize_t write_now(Connection& c, int fd, Parts& parts, int flags) {
    const WriteSection section(c, fd);
    if (!section) {
        return section.error();
    }
    ConnectionState& s = *c.state.load();
    const uint64_t before = s.bytes_out.load(std::memory_order_relaxed);
    const ssize_t n = write_locked(c, fd, parts, flags);
    if (n == -EAGAIN || (n > 0 && !parts.empty())) { // epoll(7): a partial write is followed by an edge, too
        s.blocked.fetch_add(1);
    }
    if (n > 0) {
        const uint64_t by_path = s.bytes_out.load(std::memory_order_relaxed) - before;
        stats::moved_locked(c, s, false, static_cast<uint64_t>(n), by_path, s.out.capacity());
    }
    return n;
}

namespace {

ssize_t write_file_locked(Connection& c, int fd, int file, off_t* offset, size_t count) {
    const ssize_t by_kernel = choose_kernel(c, fd, 0);
    if (by_kernel < 0) {
        return by_kernel;
    }
    if (by_kernel != 0) {
        if (const ssize_t due = flush_due(c, fd); due < 0) {
            return due == -EPIPE ? write_to_gone_peer(fd, 0) : due;
        }
        // Only this call fills the kernel's queue, and it requests no more than there is space for: it blocks no longer
        // than reading the file takes.
        pollfd space{fd, POLLOUT, 0};
        if (sys::poll(&space, 1, 0) <= 0) {
            return -EAGAIN;
        }
        constexpr size_t piece = 65536;
        ConnectionState& s = *c.state.load();
        if (s.cork != 0) {
            cork_in_kernel(fd, true);
        }
        const long n = sys::call(SYS_sendfile, fd, file, offset, std::min(count, piece));
        if (n > 0) {
            count_bytes_sent(c, static_cast<uint64_t>(n));
            note_held_by_kernel(s, s.cork != 0);
            stats::moved_by_kernel(c, s, false, static_cast<uint64_t>(n));
        } else if (s.cork != 0 && s.held_since_ns == 0) {
            cork_in_kernel(fd, false);
        }
        return n;
    }
    ConnectionState& s = *c.state.load();
    uint64_t space = 0;
    if (const ssize_t error = space_of(c, fd, space); error < 0) {
        return error;
    }
    const path::Cursor at = s.out;
    const size_t length = at.contiguous(std::min<uint64_t>(space, count));
    uint8_t* to = path::ring_memory(c.segment.load(), c.out_index()) + at.offset_of(at.position);
    const long n =
        offset != nullptr ? sys::call(SYS_pread64, file, to, length, *offset) : sys::call(SYS_read, file, to, length);
    if (n > 0) {
        if (offset != nullptr) {
            *offset += n;
        }
        const bool holds = may_hold(c, static_cast<uint64_t>(n), 0);
        count_in_ring(s, static_cast<uint64_t>(n));
        holds ? hold(c) : publish(c, fd);
        stats::moved_locked(c, s, false, static_cast<uint64_t>(n), static_cast<uint64_t>(n), s.out.capacity());
    }
    return n;
}

} // namespace

ssize_t write_file_now(Connection& c, int fd, int file, off_t* offset, size_t count) {
    const WriteSection section(c, fd);
    if (!section) {
        return section.error();
    }
    const ssize_t n = write_file_locked(c, fd, file, offset, count);
    if (n == -EAGAIN) {
        c.state.load()->blocked.fetch_add(1);
    }
    return n;
}

} // namespace preload::stream
