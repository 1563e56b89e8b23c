// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// TCP_CORK and MSG_MORE: the program wants its peer to see what several writes make together. The bytes are in the ring
// already, but `head` stays in front of them until the program lets them go, they are many, or 200 ms have passed
// (tcp(7)). On whatever else the writer does with the ring than writing, they are pushed first.
#include "preload/connection/stream_internal.hpp"

#include <algorithm>

#include <netinet/in.h>
#include <netinet/tcp.h>

#include "preload/base/system.hpp"
#include "preload/rendezvous/service.hpp"

namespace preload::stream {

namespace {

// The kernel sends full segments. On loopback, these have up to 64 KiB, between hosts 1448 bytes and more. A reader
// that follows a long corked transfer should not wait for so much.
constexpr uint64_t max_held = 16U << 10;

// Whether the service of this process looks at the connection from time to time, and pushes in the end.
bool is_watched(Connection& c) {
    const ConnectionState& s = *c.state.load();
    const auto watches = [&] { return s.unread_due_ns.load() != 0 && s.unread_watcher.load() == service::own_name(); };
    if (!watches()) {
        watch_unread(c);
    }
    return watches();
}

} // namespace

bool may_hold(Connection& c, uint64_t count, int flags) {
    const ConnectionState& s = *c.state.load();
    if ((flags & MSG_MORE) == 0 && s.cork.load(std::memory_order_relaxed) == 0) [[likely]] {
        return false;
    }
    // A worker or another process may have the connection for longer than this one, which pushes in the end.
    if (c.mirrored || s.ended || s.holders.load() != 1) {
        return false;
    }
    const uint64_t shown = c.out_ring().writer.head.load(std::memory_order_relaxed);
    return s.out.position + count - shown <= std::min<uint64_t>(max_held, s.out.capacity()) && is_watched(c);
}

void hold(Connection& c) {
    ConnectionState& s = *c.state.load();
    c.out_ring().writer.held_to.store(s.out.position, std::memory_order_release);
    if (s.held_since_ns != 0) {
        return;
    }
    s.held_since_ns = sys::now_ns();
    // For a reader that was stopped, the service looks ever more seldom.
    constexpr uint64_t usual_delay_ns = 100000000U; // of its looks, which would cost a request each to avoid
    if (const uint64_t due = s.held_since_ns + held_at_most_ns; due + usual_delay_ns < s.unread_due_ns.load()) {
        s.unread_due_ns = due;
        service::take_steps_at(due);
    }
}

void publish(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    if (s.held_since_ns.load(std::memory_order_relaxed) != 0) [[unlikely]] {
        s.held_since_ns = 0;
    }
    c.out_ring().writer.head.store(s.out.position);
    data_written(c, fd);
}

void push_held(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    if (s.held_since_ns.load() == 0) [[likely]] {
        return;
    }
    if ((s.out_epoch.load() & 1) != 0) {
        publish(c, fd);
        return;
    }
    s.held_since_ns = 0;
    cork_in_kernel(fd, false);
    const int yes = 1; // it is set already, but this has the kernel send what it has: tcp(7)
    sys::call(SYS_setsockopt, fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
}

void cork_in_kernel(int fd, bool on) {
    const int value = on ? 1 : 0;
    sys::call(SYS_setsockopt, fd, IPPROTO_TCP, TCP_CORK, &value, sizeof(value));
}

void note_held_by_kernel(ConnectionState& s, bool more) {
    if (!more && s.held_since_ns.load(std::memory_order_relaxed) != 0) {
        s.held_since_ns = 0;
    } else if (more && s.held_since_ns.load(std::memory_order_relaxed) == 0) {
        s.held_since_ns = sys::now_ns();
    }
}

bool holds_in_kernel(const ConnectionState& s) {
    const uint64_t since = s.held_since_ns.load(std::memory_order_relaxed);
    return since != 0 && sys::now_ns() - since < held_at_most_ns;
}

void push(Connection& c, int fd) {
    if (c.state.load()->held_since_ns.load() != 0) [[unlikely]] {
        if (const WriteSection section(c, fd); section) {
            push_held(c, fd);
        }
    }
}

bool has_held(const Connection& c) {
    const path::WriterFields& writer = c.in_ring().writer;
    return writer.held_to.load(std::memory_order_acquire) > writer.head.load();
}

bool take_held(Connection& c) {
    if (!has_held(c)) {
        return false;
    }
    path::WriterFields& writer = c.in_ring().writer;
    writer.head.store(writer.held_to.load()); // the writer's field, and the writer has gone
    return true;
}

} // namespace preload::stream
