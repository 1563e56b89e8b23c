// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What a connection has for the program, without consuming it: how many bytes, and whether there are any.
#include "preload/connection/stream_internal.hpp"

#include <algorithm>
#include <cerrno>
#include <climits>

#include <linux/sockios.h>
#include <poll.h>

#include "preload/base/system.hpp"
#include "preload/connection/positions.hpp"

namespace preload::stream {

using path::Direction;

long unread_in_kernel(int fd) {
    int count = 0;
    const long result = sys::ioctl(fd, SIOCINQ, &count);
    return result < 0 ? result : count;
}

// SIOCINQ ends at the mark of an urgent byte (tcp(7)), while poll(2), and the edges of epoll(7), report bytes behind
// it: a program must find what was reported.
long unread_with_hidden(const Connection& c, int fd) {
    const long there = unread_in_kernel(fd);
    if (there < 0 || !c.mirrored.load(std::memory_order_relaxed) || (!is_proving(c) && !is_at_mark(fd))) {
        return there;
    }
    const ConnectionState& s = *c.state.load();
    uint8_t byte = 0;
    const long urgent = sys::recv(fd, &byte, 1, MSG_OOB | MSG_PEEK | MSG_DONTWAIT);
    uint64_t arrived = 0;
    // Without EINVAL, an urgent byte is unread, or still to come; after the proof it is in front of a record.
    if (urgent == -EAGAIN || (urgent == 1 && !is_proving(c)) || !read_arrived(fd, arrived)) {
        return there;
    }
    const uint64_t uncounted = urgent == 1 || s.urgent_byte != 0 ? 1 : 0;
    return std::max(there, static_cast<long>(arrived - s.received.load() - uncounted));
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
    const uint64_t readable = taken + std::min<uint64_t>(in_ring, path::ring_bytes);
    const bool steady = published_epoch(c) == epoch;
    if ((epoch & 1) != 0 && steady) {
        return static_cast<long>(readable);
    }
    const long there = unread_with_hidden(c, fd);
    if (there < 0 || steady) {
        return there < 0 ? there : static_cast<long>(taken) + there;
    }
    // On both sides of a switch: after an edge, a program may read as much as this returns, and no more.
    if (!c.mirrored && !s.recovered) {
        const uint32_t frames = ring.writer.frames.load(std::memory_order_acquire) - s.frames_seen.load();
        return static_cast<long>(readable) + std::max(there - static_cast<long>(frames), 0L);
    }
    // The worker reports frames late, see arrived_of().
    const bool from_kernel = (epoch & 1) == 0;
    return static_cast<long>(readable + (from_kernel     ? ring.writer.switch_at.load() - s.received.load()
                                         : s.resume_seen ? static_cast<uint64_t>(there)
                                                         : 0));
}

int inq_hint(Connection& c, int fd) {
    if (const long there = unread(c, fd); there > 0) {
        return static_cast<int>(std::min<long>(there, INT_MAX));
    }
    const ConnectionState& s = *c.state.load();
    const bool steady = published_epoch(c) == s.in_epoch.load() && c.in_ring().writer.ends.load() == 0 && !s.ended &&
                        !s.broken && !s.awaits_resume;
    return steady ? 0 : 1;
}

bool ring_has_bytes(const Connection& c) {
    const ConnectionState* s = c.state.load(std::memory_order_relaxed);
    return c.segment.load(std::memory_order_relaxed) != nullptr && !s->awaits_resume.load(std::memory_order_relaxed) &&
           c.in_ring().writer.head.load() != c.in_ring().reader.tail.load(std::memory_order_relaxed);
}

namespace {

// By the values that both ends publish: a false one misleads only waiters for the end that publishes it.
bool ring_is_half_empty(const Direction& ring) {
    const uint32_t area = std::min(ring.writer.grow_area.load(std::memory_order_relaxed), path::areas - 1);
    return ring.writer.head.load(std::memory_order_relaxed) - ring.reader.tail.load() <= path::area_sizes[area] / 2;
}

} // namespace

bool check_in_memory(const Connection& c, short wanted, short& events) {
    const ConnectionState& s = *c.state.load(std::memory_order_relaxed);
    constexpr short in_memory = POLLIN | POLLRDNORM | POLLOUT | POLLWRNORM | POLLRDHUP;
    if ((wanted & ~in_memory) != 0 || c.segment.load(std::memory_order_relaxed) == nullptr || s.ended || s.read_shut ||
        s.kernel_readable || s.broken || s.hold || s.pending_error != 0 || s.giving_back || s.awaits_resume ||
        s.taken != 0) {
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
           s->recovery.load(std::memory_order_relaxed) == Recovery::none && ring_is_half_empty(c.out_ring());
}

bool more_may_come(const Connection& c, ssize_t n) {
    const ConnectionState* s = c.state.load();
    const uint32_t epoch = s->in_epoch.load();
    return c.segment.load() != nullptr && (epoch & 1) != 0 && !s->ended &&
           c.in_ring().writer.epoch.load(std::memory_order_acquire) == epoch && // else the rest comes by the kernel
           c.in_ring().writer.head.load() - c.in_ring().reader.tail.load() == static_cast<uint64_t>(n);
}

} // namespace preload::stream
