// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A reader that leaves bytes unread without a wait that its library sees. It may compute, or be stopped; or it waits by
// a system call of its own (see wait/seen.hpp), for which there is nothing to hear of. A frame wakes the latter; if
// that happens again and again, the connection stays with the kernel. The service of the writing process watches.
#include "preload/connection/stream_internal.hpp"

#include <utility>

#include <poll.h>

#include "preload/base/system.hpp"
#include "preload/rendezvous/service.hpp"
#include "preload/rules/decide.hpp"
#include "preload/stats/page.hpp"

namespace preload::stream {

namespace {

constexpr uint64_t patience_ns = 200000000U;
constexpr uint64_t soon_ns = 5000000U; // the reader has waited for the frame if it reads so soon after it
constexpr uint32_t max_woken = 3;      // in a row

bool ends(int fd) {
    pollfd one{fd, POLLRDHUP, 0};
    return sys::poll(&one, 1, 0) != 0;
}

enum class Step : uint8_t { done, again, leave };

// Under the write lock. again: after `pause`.
Step step(Connection& c, int fd, uint64_t now, uint64_t& pause) {
    ConnectionState& s = *c.state.load();
    const uint64_t tail = c.out_ring().reader.tail.load();
    const bool moved = tail != s.unread_tail;
    if (std::exchange(s.nudged, false)) {
        s.woken_readers = moved ? s.woken_readers + 1 : 0;
        if (s.woken_readers >= max_woken) {
            return Step::leave;
        }
    }
    if ((s.out_epoch.load() & 1) == 0 || s.broken || s.ended || is_recovering(c) || tail == s.out.position) {
        return Step::done;
    }
    if (c.out_ring().wake.data_wanted.load() != path::nobody) {
        data_written(c, fd);
        return Step::done;
    }
    if (moved) {
        s.unread_tail = tail;
        s.unread_since_ns = now;
    }
    const uint64_t since = now - s.unread_since_ns;
    if (since < patience_ns) {
        pause = patience_ns - since;
        return Step::again;
    }
    // One frame for the same bytes. An end that has shut down both directions would answer it with a reset.
    if (tail == s.nudged_tail || ends(fd)) {
        return Step::done;
    }
    wake_by_tcp(c, fd);
    s.nudged_tail = tail;
    s.nudged = true;
    pause = soon_ns;
    return Step::again;
}

} // namespace

void watch_unread(Connection& c) {
    ConnectionState& s = *c.state.load();
    s.unread_watched = true;
    if (c.mirrored || policy::test_patient()) {
        return;
    }
    const uint64_t now = sys::now_ns();
    s.unread_tail = c.out_ring().reader.tail.load();
    s.unread_since_ns = now;
    (void)service::take_steps_at(now + patience_ns);
}

uint64_t wake_reader(Connection& c, int fd, uint64_t now) {
    ConnectionState& s = *c.state.load();
    if (!s.unread_watched.load(std::memory_order_relaxed) || c.mirrored || policy::test_patient()) {
        return UINT64_MAX;
    }
    {
        const WriteSection section(c, fd);
        uint64_t pause = 0;
        const Step what = section ? step(c, fd, now, pause) : Step::done;
        if (what == Step::again) {
            return now + pause;
        }
        s.unread_watched = false;
        if (what == Step::done) {
            return UINT64_MAX;
        }
        Reason none = Reason::none;
        s.reason.compare_exchange_strong(none, Reason::unseen_wait);
        s.hold = true;
        return_out(c, false);
        if (c.out_ring().reader.tail.load() != s.out.position && !ends(fd)) { // of what is left in the ring, too
            wake_by_tcp(c, fd);
        }
    }
    ask_for_return(c, fd);
    return UINT64_MAX;
}

} // namespace preload::stream
