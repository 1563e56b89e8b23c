// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A full ring whose reader does not read. TCP would take some megabytes more: two programs that both send before they
// receive may depend on that. So such a connection continues by the kernel, and switches again once the reader has
// caught up. The service of the writing process watches: with a timeout of its own, a sleeping call would not be
// restarted after a signal (SA_RESTART, signal(7)).
#include "preload/connection/stream_internal.hpp"

#include "preload/base/system.hpp"
#include "preload/rendezvous/service.hpp"
#include "preload/rules/decide.hpp"
#include "preload/stats/page.hpp"

namespace preload::stream {

namespace {

constexpr uint64_t row_ns = 1000000000U;   // stalls within this time of each other are in a row
constexpr uint32_t max_stalls = 3;         // in a row: then the connection stays with the kernel
constexpr uint64_t stale_ns = 1000000000U; // nobody has watched since: there was no service

// How long it is left unread. A reader that waits for space itself will not read; another one may wait for a processor,
// and one on another host for a wire that repeats what it has lost: there, to return takes both hosts. If this end
// reads all that comes, the two do not wait for each other here, and the reader is likely to be slow.
uint64_t patience_ns(const Connection& c) {
    constexpr uint64_t usual = 50000000U;
    constexpr uint64_t with_far_end = 200000000U;
    constexpr uint64_t with_slow_far_end = 1000000000U;
    const path::Direction& in = c.in_ring();
    if (c.mirrored) {
        return in.writer.head.load() != in.reader.tail.load() ? with_far_end : with_slow_far_end;
    }
    return in.wake.space_wanted.load() != path::nobody ? full_ring_pause_ns : usual;
}

// The reader wakes a writer when half of the ring is free, see space_made(): below that, a waiter would not hear of
// space. Without any space, there is no memory for a larger ring.
bool is_full(const Connection& c) {
    const ConnectionState& s = *c.state.load();
    uint64_t space = 0;
    return (s.out_epoch.load() & 1) != 0 && writable(c.out_ring(), s.out, space) &&
           (space == 0 || (space < s.out.capacity() / 2 && !may_grow(c.out_ring(), s.out)));
}

// Under the write lock. Programs that exchange bytes like this do so again, and the wait is lost each time.
void note_stall(ConnectionState& s, uint64_t now, uint64_t patience) {
    s.stalls = now - s.stalled_ns < row_ns + patience ? s.stalls + 1 : 1;
    s.stalled_ns = now;
    if (s.stalls >= max_stalls) {
        give_reason(s, Reason::unread);
        s.hold = true;
    }
}

} // namespace

void leave_ring(Connection& c, int fd) {
    const ConnectionState& s = *c.state.load();
    // The peer knows the service of the process that upgraded it: of this one's parent, which has closed it.
    if (const uint64_t own = service::own_name(); own != 0 && s.holders.load() == 1) {
        c.shared().service[c.out_index()].store(own);
    }
    return_out(c, false);
    if (path::requests(c.out_ring().reader.request.load(), s.out_epoch.load() - 1, path::return_to_kernel)) {
        wake_by_tcp(c, fd); // it has asked the parent's
    }
}

void ask_for_return(Connection& c, int fd) {
    const ConnectionState& s = *c.state.load();
    if (const ReadSection section(c, fd); section) {
        request_return(c);
    }
    changed(c);
    if (c.segment.load() != nullptr && needs_frame(c) && !s.read_shut) {
        service::ask(c.shared(), 1 - c.out_index());
    }
    wake_everybody(c);
    stats::refresh(c);
}

void note_full(Connection& c) {
    ConnectionState& s = *c.state.load();
    if (policy::test_patient()) [[unlikely]] {
        return;
    }
    const uint64_t now = sys::now_ns();
    if (s.full_since_ns == 0 || now - s.full_since_ns > stale_ns) {
        s.full_tail = c.out_ring().reader.tail.load();
        s.full_since_ns = now;
        service::take_steps_at(now + full_ring_pause_ns);
    }
}

bool leave_full_ring(Connection& c, int fd, uint64_t now) {
    ConnectionState& s = *c.state.load();
    if (s.full_since_ns.load(std::memory_order_relaxed) == 0) {
        return false;
    }
    {
        const WriteSection section(c, fd);
        if (!section) {
            return false;
        }
        if (s.broken || is_recovering(c) || !is_full(c)) {
            s.full_since_ns = 0;
            return false;
        }
        if (is_halted(s, s.out_epoch.load())) {
            return true; // until the reader asks for the kernel
        }
        if (const uint64_t tail = c.out_ring().reader.tail.load(); tail != s.full_tail) {
            s.full_tail = tail;
            s.full_since_ns = now;
        }
        const uint64_t patience = patience_ns(c);
        if (now - s.full_since_ns < patience) {
            return true;
        }
        s.full_since_ns = 0;
        note_stall(s, now, patience);
        leave_ring(c, fd);
    }
    ask_for_return(c, fd);
    return false;
}

} // namespace preload::stream
