// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A reader that leaves bytes unread without a wait that its library sees. It may compute, or be stopped; or it waits by
// a system call of its own (see wait/seen.hpp), for which there is nothing to hear of. A frame wakes the latter; if
// that happens again and again, the connection stays with the kernel. The service of the writing process watches.
#include "preload/connection/stream_internal.hpp"

#include <algorithm>
#include <utility>

#include <poll.h>

#include "preload/base/system.hpp"
#include "preload/rendezvous/service.hpp"
#include "preload/rules/decide.hpp"

namespace preload::stream {

namespace {

constexpr uint64_t patience_ns = 200000000U;
constexpr uint64_t grid_ns = 100000000U; // the service looks at many connections at once, and seldom
constexpr uint64_t late_ns = 100000000U;
constexpr uint64_t soon_ns = 5000000U;     // the reader has waited for the frame if it reads so soon after it
constexpr uint64_t stale_ns = 1000000000U; // the process that watched has ended, or has closed the connection
constexpr uint32_t max_woken = 3;          // in a row
constexpr uint64_t never = 0;
constexpr uint64_t leave = UINT64_MAX;

uint64_t later(uint64_t now, uint32_t doublings = 0) {
    return (now + (patience_ns << doublings)) / grid_ns * grid_ns + grid_ns;
}

// A reader that is stopped costs less and less.
uint64_t ever_later(ConnectionState& s, uint64_t now) {
    constexpr uint32_t most = 4;
    const uint32_t doublings = s.unread_doublings;
    s.unread_doublings = std::min(doublings + 1, most);
    return later(now, doublings);
}

// An end that has shut down both directions answers a frame with a reset, which loses what it has still to send.
bool ends(const Connection& c, int fd) {
    pollfd one{fd, POLLRDHUP, 0};
    return c.in_ring().writer.ends.load() != path::no_end || sys::poll(&one, 1, 0) != 0;
}

// Under the write lock. Returns when the next step is due, or `never`, or `leave`. due: when this one was.
uint64_t step(Connection& c, int fd, uint64_t now, uint64_t due) {
    ConnectionState& s = *c.state.load();
    if (const uint64_t held_ns = s.held_since_ns; held_ns != 0) {
        if (now < held_ns + held_at_most_ns) {
            return held_ns + held_at_most_ns;
        }
        push_held(c, fd);
    }
    const bool in_ring = (s.out_epoch.load() & 1) != 0;
    const uint64_t nudged_ns = std::exchange(s.nudged_ns, 0);
    const uint64_t head = s.out.position;
    const uint64_t tail = c.out_ring().reader.tail.load();
    // Frame::resume, too, announces what is left in the ring, and waits for a next byte that may never come.
    if (s.broken || s.ended || is_recovering(c) || (!in_ring && (!s.resume_due || head == tail))) {
        return never;
    }
    const bool was_unread = s.unread_head != s.unread_tail;
    const bool wrote = std::exchange(s.unread_head, head) != head;
    const bool read = std::exchange(s.unread_tail, tail) != tail;
    if (nudged_ns != 0 && now > nudged_ns + 4 * soon_ns) {
        // too late to tell
    } else if (nudged_ns != 0 && read) {
        ++s.woken_readers;
    } else if (nudged_ns != 0 || read) {
        s.woken_readers = 0;
    }
    if (in_ring && s.woken_readers >= max_woken) {
        return leave;
    }
    if (head == tail) {
        return wrote ? later(now) : never; // else each further write would begin a watch
    }
    // After a pause of both processes, or of the whole system, the reader has its turn first.
    const bool late = !std::exchange(s.was_late, now > due + late_ns) && s.was_late;
    if (!was_unread || read || late) {
        s.unread_doublings = 0;
        return later(now);
    }
    if (ends(c, fd)) {
        return never;
    }
    if (in_ring && c.out_ring().wake.data_wanted.load() != path::nobody) {
        data_written(c, fd);
        return later(now);
    }
    const uint64_t sent = s.sent.load();
    // TCP has something for it to read. If that is the frame, it may be consumed with a part of the bytes.
    if (c.out_ring().reader.received.load() != sent) {
        return ever_later(s, now);
    }
    wake_by_tcp(c, fd);
    if (s.sent.load() == sent) {
        return ever_later(s, now);
    }
    if (!in_ring) {
        return never;
    }
    s.nudged_ns = now;
    return now + soon_ns;
}

} // namespace

void watch_unread(Connection& c) {
    ConnectionState& s = *c.state.load();
    const uint64_t own = service::own_name();
    if (own == 0 || c.mirrored || policy::test_patient()) {
        return;
    }
    const uint64_t now = sys::now_ns();
    if (const uint64_t due = s.unread_due_ns.load(); due != 0 && now < due + stale_ns) {
        return; // another process watches
    }
    s.unread_head = s.out.position;
    s.unread_tail = c.out_ring().reader.tail.load();
    s.nudged_ns = 0;
    s.was_late = false;
    s.unread_doublings = 0;
    s.unread_watcher = own;
    s.unread_due_ns = later(now);
    if (!service::take_steps_at(s.unread_due_ns)) {
        s.unread_due_ns = 0;
    }
}

void forget_unread(Connection& c) {
    ConnectionState& s = *c.state.load();
    if (const uint64_t own = service::own_name(); own != 0 && s.unread_watcher.load() == own) {
        s.unread_due_ns = 0;
    }
}

uint64_t wake_reader(Connection& c, int fd, uint64_t now) {
    ConnectionState& s = *c.state.load();
    const uint64_t due = s.unread_due_ns.load(std::memory_order_relaxed);
    if (due == 0 || s.unread_watcher.load(std::memory_order_relaxed) != service::own_name()) {
        return UINT64_MAX;
    }
    if (now < due) {
        return due;
    }
    uint64_t next = never;
    {
        // A process that was killed with the lock leaves it to one that waits for it.
        constexpr uint32_t most_tries = 8;
        const bool waits = s.unread_busy.load(std::memory_order_relaxed) >= most_tries;
        const WriteSection section(c, fd, waits);
        s.unread_busy = section.error() == interrupted && !waits ? s.unread_busy.load() + 1 : 0;
        if (section) {
            next = step(c, fd, now, due);
            if (next == leave) {
                give_reason(s, Reason::unseen_wait);
                s.hold = true;
                leave_ring(c, fd);
                if (s.resume_due && c.out_ring().reader.tail.load() != s.out.position && !ends(c, fd)) {
                    wake_by_tcp(c, fd);
                }
            }
        } else if (section.error() == interrupted) { // a writer is at work
            next = later(now);
        }
        s.unread_due_ns = next == leave ? 0 : next;
    }
    if (next == leave) {
        ask_for_return(c, fd);
    }
    return next == never || next == leave ? UINT64_MAX : next;
}

} // namespace preload::stream
