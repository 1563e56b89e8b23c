// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/connection/gate.hpp"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include "preload/base/system.hpp"
#include "preload/connection/positions.hpp"
#include "preload/connection/stream.hpp"
#include "preload/connection/table.hpp"
#include "preload/rendezvous/service.hpp"
#include "preload/stats/page.hpp"
#include "preload/wait/epoll_set.hpp"

namespace preload::gate {

namespace {

// What others have moved is not the program's.
void set_positions(ConnectionState& s, uint64_t received, uint64_t sent) {
    s.kernel_more_in -= received - s.received;
    s.kernel_more_out -= sent - s.sent;
    s.received = received;
    s.sent = sent;
}

// Whether all bytes so far went through calls of the library, in any process: then its counts are the positions.
bool counts_agree(ConnectionState& s, int fd, Reason& reason) {
    Positions kernel;
    if (!read_positions(fd, kernel)) {
        return false; // too busy, or closing
    }
    if (!kernel.established) {
        reason = Reason::half_closed;
        return false;
    }
    const uint64_t syn = s.connected_out.load();
    if (s.uncounted == Uncounted::before) {
        set_positions(s, kernel.received, kernel.sent - syn);
        s.uncounted = Uncounted::no;
        s.adopted = false;
        return true;
    }
    if (s.uncounted == Uncounted::yes) {
        reason = Reason::several;
        return false;
    }
    if (s.adopted) {
        // Counted from where tracking began; absolute from now on.
        if (kernel.received - s.received_base != s.received || kernel.sent - s.sent_base != s.sent) {
            reason = Reason::past_library;
            return false;
        }
        set_positions(s, kernel.received, kernel.sent - syn);
        s.adopted = false;
        return true;
    }
    if (kernel.received != s.received || kernel.sent - syn != s.sent) {
        reason = Reason::past_library;
        return false;
    }
    return true;
}

int option(int fd, int level, int name) {
    int value = 0;
    socklen_t length = sizeof(value);
    return sys::getsockopt(fd, level, name, &value, &length) == 0 ? value : 0;
}

int tcp_option(int fd, int name) { return option(fd, IPPROTO_TCP, name); }

void set_tcp_option(int fd, int name, int value) {
    sys::call(SYS_setsockopt, fd, IPPROTO_TCP, name, &value, sizeof(value));
}

// A frame of one byte must not wait for an acknowledgement (Nagle's algorithm) or for more bytes.
void let_frames_go(ConnectionState& s, int fd) {
    s.nodelay = tcp_option(fd, TCP_NODELAY);
    s.cork = tcp_option(fd, TCP_CORK);
    s.inq = tcp_option(fd, TCP_INQ);
    s.timestamp = option(fd, SOL_SOCKET, SO_TIMESTAMP) | option(fd, SOL_SOCKET, SO_TIMESTAMPNS);
    set_tcp_option(fd, TCP_CORK, 0);
    set_tcp_option(fd, TCP_NODELAY, 1);
}

// What the kernel holds back would be sent at once, in front of the rest. For bytes that are always held back, the wait
// ends when the kernel's does.
bool waits_for_corked(ConnectionState& s, int fd) {
    int unsent = 0;
    if (tcp_option(fd, TCP_CORK) == 0 || sys::ioctl(fd, SIOCOUTQNSD, &unsent) != 0 || unsent == 0) {
        return false;
    }
    const uint64_t now = sys::now_ns();
    uint64_t since = 0;
    return s.held_since_ns.compare_exchange_strong(since, now) || now - since < stream::held_at_most_ns;
}

} // namespace

void restore_options(ConnectionState& s, int fd) {
    set_tcp_option(fd, TCP_NODELAY, s.nodelay);
    if (s.cork != 0) {
        set_tcp_option(fd, TCP_CORK, s.cork);
    }
}

bool pin(ConnectionState& s) {
    uint64_t now = s.gate.load();
    while ((now & careful) == 0) {
        if (s.gate.compare_exchange_weak(now, (now | pinned) & ~wanted)) {
            return true;
        }
    }
    return false;
}

void want(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    uint64_t now = s.gate.load();
    while ((now & (careful | pinned)) == 0 && !s.gate.compare_exchange_weak(now, now | wanted)) {
    }
    if ((now & count_mask) == 0) {
        consent(c, fd);
    }
}

void consent(Connection& c, int fd) {
    const sys::ErrnoKept kept;
    ConnectionState& s = *c.state.load();
    if (c.segment.load() == nullptr || table::connection(fd) != &c || waits_for_corked(s, fd)) {
        return;
    }
    // Only careful calls take these locks, and there are none; a signal handler that has interrupted this very function
    // leaves the work to it.
    if (!s.read_lock.acquire()) {
        return;
    }
    if (!s.write_lock.acquire()) {
        s.read_lock.release();
        return;
    }
    uint64_t expected = wanted;
    bool done = false;
    // A close takes the fd out of the table under these locks: if one came first, fd and segment are another
    // connection's by now, or nothing's.
    const bool is_open = table::connection(fd) == &c && c.state.load() == &s && c.segment.load() != nullptr;
    if (is_open && s.gate.compare_exchange_strong(expected, careful)) {
        Reason reason = Reason::none;
        if (counts_agree(s, fd, reason)) {
            const long flags = sys::call(SYS_fcntl, fd, F_GETFL, 0);
            s.nonblocking = flags >= 0 && (flags & O_NONBLOCK) != 0;
            let_frames_go(s, fd);
            s.held_since_ns = 0;
            s.cookie = cookie_of(fd);
            c.out_ring().writer.sent.store(s.sent);
            s.bytes_sent_to = s.sent.load();
            c.in_ring().reader.received.store(s.received);
            c.in_ring().wake.consent.store(path::Consent::given, std::memory_order_release);
            if (c.mirrored && c.shared().mirror.stage.load() == path::MirrorFields::failed) {
                s.hold = true; // the proof failed before there was anything to leave
            }
            done = true;
        } else if (reason != Reason::none) {
            s.reason = reason;
            stats::refresh(c);
            s.hold = true;
            s.gate.store(pinned);
        } else {
            s.gate.store(wanted); // the next call that ends retries
        }
    }
    s.write_lock.release();
    s.read_lock.release();
    if (done) {
        stream::changed(c); // the worker waits for this
        watches_careful(c);
    }
}

} // namespace preload::gate
