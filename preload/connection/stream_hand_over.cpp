// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Hands a connection over to a holder that does not use the ring: another program after exec, another process that
// gets the descriptor. All unread bytes must come by the kernel, in order: see stream_give_back.cpp.
#include "preload/connection/stream_internal.hpp"

#include <array>
#include <utility>

#include <netinet/in.h>
#include <sched.h>

#include "preload/base/system.hpp"
#include "preload/connection/gate.hpp"
#include "preload/connection/io.hpp"
#include "preload/rendezvous/service.hpp"
#include "preload/stats/page.hpp"

namespace preload::stream {

namespace {

constexpr int pause_ms = 1;

} // namespace

bool ask_seldom(Connection& c) {
    constexpr uint64_t pause_ns = 10000000U;
    std::atomic<uint64_t>& asked = c.state.load()->step_asked_ns;
    uint64_t before = asked.load();
    const uint64_t now = sys::now_ns();
    if (now - before < pause_ns || !asked.compare_exchange_strong(before, now)) {
        return true;
    }
    return service::ask(c.shared(), 1 - c.out_index());
}

bool ask_for_step(Connection& c) { return c.mirrored ? ask_seldom(c) : service::ask(c.shared(), 1 - c.out_index()); }

bool ask_after(Connection& c, bool moved) { return moved ? ask_for_step(c) : ask_seldom(c); }

namespace {

// The peer's direction when the peer cannot send any more: with nothing in the ring, only frames are in front of EOF.
ssize_t end_of_peer(Connection& c, int fd, ssize_t step) {
    const ConnectionState& s = *c.state.load();
    if (s.taken != 0 || c.in_ring().writer.head.load() != s.in.position || s.broken || (s.in_epoch.load() & 1) == 0) {
        return step;
    }
    ssize_t error = 0;
    return take_frames(c, fd, false, error) == Taken::end && !is_cut_off(c) ? 0 : step;
}

// The peer's direction has ended: it may have been shut down alone. What such a peer has not read in the ring must
// still go by the kernel, and the peer answers requests for that.
bool peer_may_read(Connection& c, int fd) {
    pollfd one{fd, 0, 0};
    if (c.state.load()->peer_gone || sys::poll(&one, 1, 0) > 0) { // POLLHUP, POLLERR
        return false;
    }
    if (c.mirrored) {
        const path::MirrorFields& mirror = c.shared().mirror;
        if (mirror.far_closed.load() != 0 || mirror.stage.load() >= path::MirrorFields::ended) {
            return false;
        }
    }
    return ask_for_step(c);
}

void leave_careful(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    shut_now(c, fd);
    leave_mirror(c);
    gate::restore_options(s, fd);
    s.gate.fetch_or(gate::pinned);
    s.gate.fetch_and(~gate::careful);
}

} // namespace

bool is_clear(const path::Direction& ring, uint32_t epoch) {
    const uint32_t followed = ring.reader.epoch.load();
    return epoch == 0 || followed == epoch ||
           (followed == epoch - 1 && ring.reader.tail.load() == ring.writer.head.load() &&
            ring.reader.given_back.load() == 0);
}

ssize_t clear_step(Connection& c, int fd) {
    const ConnectionState& s = *c.state.load();
    const WriteSection section(c, fd);
    if (!section) {
        return section.error();
    }
    ssize_t due = flush_due(c, fd);
    advance_out(c);
    if (due == 0) {
        due = flush_due(c, fd);
    }
    const uint32_t epoch = s.out_epoch.load();
    if ((epoch & 1) != 0) {
        return -EAGAIN; // halted
    }
    if (due == 0 && !s.recovered && !is_clear(c.out_ring(), epoch)) {
        c.out_ring().writer.clear.store(epoch - 1, std::memory_order_release);
        return -EAGAIN;
    }
    return due;
}

ssize_t hand_over_step(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    // What the peer acts on. Two services that have nothing new for each other would keep each other busy.
    const auto progress = [&] {
        return std::array<uint64_t, 4>{s.in_epoch.load(), s.out_epoch.load(), c.in_ring().reader.request.load(),
                                       c.out_ring().writer.clear.load()};
    };
    const auto before = progress();
    // What the peer has not read in the ring goes by the kernel as well: no process can be asked later on.
    const ssize_t out = clear_step(c, fd);
    if (out <= gone) {
        return out;
    }
    ssize_t in = 0;
    {
        const ReadSection section(c, fd);
        if (!section) {
            return section.error();
        }
        begin_to_give_back(c);
        in = give_back_step(c, fd);
        if (in < 0 && in != -EAGAIN) {
            in = end_of_peer(c, fd, in);
        }
        const bool all_sent = !has_backlog(s) && !s.resume_due && (s.out_epoch.load() & 1) == 0;
        const bool ended = in == 0 && all_sent &&
                           ((s.in_epoch.load() & 1) != 0 || peer_has_ended(c, fd) || peer_has_gone_meanwhile(c, fd)) &&
                           (out == 0 || !peer_may_read(c, fd));
        if (in == 0 &&
            (ended || s.pending_error != 0 || (out != 0 && out != -EAGAIN))) { // the kernel reports it to the program
            s.giving_back = false;
            leave_careful(c, fd);
            return 0;
        }
        if (in < 0 && in != -EAGAIN) {
            return in;
        }
    }
    if (in == 0 && out == 0) {
        settle(c, fd);
        if ((s.gate.load() & gate::careful) == 0) {
            s.giving_back = false;
            return 0;
        }
    }
    ask_after(c, progress() != before);
    return -EAGAIN;
}

namespace {

// The peer requests bytes again that it has taken, or reads them itself if no process can resend them.
bool peer_has_taken(const Connection& c) {
    const ConnectionState& s = *c.state.load();
    return !s.recovered && c.out_ring().reader.given_back.load() != 0;
}

} // namespace

bool has_unsent(const ConnectionState& s) { return has_backlog(s) || (s.out_epoch.load() & 1) != 0; }

uint64_t clear_limit_ns(const Connection& c) {
    constexpr uint64_t limit_ns = 1000000000U; // for a peer that has not even begun: its machine may be busy
    return has_unsent(*c.state.load()) || is_awaited(c) || peer_has_taken(c) ? answer_limit_ns(c) : limit_ns;
}

bool clear_out(Connection& c, int fd, uint64_t patience_ns) {
    const ConnectionState& s = *c.state.load();
    const uint64_t begin = sys::now_ns();
    while (clear_step(c, fd) == -EAGAIN) {
        const bool unsent = has_unsent(s);
        const uint64_t waited = sys::now_ns() - begin;
        if (waited > clear_limit_ns(c)) {
            return !unsent;
        }
        if (waited > patience_ns) {
            return false;
        }
        if (!ask_for_step(c) && !unsent) {
            return true; // the peer's process has ended
        }
        sys::sleep_ms(pause_ms);
    }
    return true;
}

bool is_awaited(const Connection& c) {
    const ConnectionState& s = *c.state.load();
    const uint32_t epoch = s.out_epoch.load();
    const uint32_t request = c.out_ring().reader.request.load();
    if (s.recovered) {
        return has_backlog(s);
    }
    return has_backlog(s) || is_recovering(c) || ((epoch & 1) != 0 && s.halted_epoch.load() == epoch) ||
           path::requests(request, epoch, (epoch & 1) != 0 ? path::resend : path::halt);
}

namespace {

bool finish_resend(Connection& c, int fd, bool may_wait) {
    if (!is_awaited(c)) [[likely]] {
        return true;
    }
    const ConnectionState& s = *c.state.load();
    const uint64_t begin = sys::now_ns();
    const uint64_t limit = may_wait ? exit_wait_ns : close_wait_ns;
    uint32_t asked_epoch = ~s.out_epoch.load();
    do {
        if (const ssize_t step = clear_step(c, fd); step < 0 && step != -EAGAIN) {
            return step == gone;
        }
        if (!is_awaited(c)) {
            return true;
        }
        const uint32_t epoch = s.out_epoch.load();
        if (!ask_after(c, std::exchange(asked_epoch, epoch) != epoch) && !has_backlog(s)) {
            return true; // the peer's process has ended
        }
        if (sys::now_ns() - begin < short_wait_ns) {
            sched_yield();
        } else if (!may_wait && has_backlog(s)) {
            return false; // TCP has no space
        } else {
            sys::sleep_ms(pause_ms);
        }
    } while (sys::now_ns() - begin < limit);
    return false;
}

// Whether another process goes on with the shutdown that is due: a child that closes its descriptor must not make it.
bool goes_on_elsewhere(const ConnectionState& s) {
    if (s.end_process.load() == static_cast<int>(sys::call(SYS_getpid))) {
        return false; // nor does another thread's call, once the descriptor is closed
    }
    const uint64_t service = s.end_service.load();
    return service == 0 || service::ask_holder(service, s.token);
}

} // namespace

bool finish_out(Connection& c, int fd, bool may_wait) {
    push(c, fd);
    const bool done = finish_resend(c, fd, may_wait || c.mirrored);
    const ConnectionState& s = *c.state.load();
    if (s.end_due && s.open.load() != 0 && !goes_on_elsewhere(s)) {
        if (has_backlog(s)) {
            service::ask_holder(s.holder_service, s.token);
        } else {
            shut_now(c, fd);
        }
    }
    return done;
}

bool writes_by_kernel(Connection& c, int fd) {
    const ssize_t step = clear_step(c, fd);
    if (step == -EAGAIN) {
        ask_seldom(c);
    }
    return step != -EAGAIN && step != interrupted && step != elsewhere;
}

bool has_last_bytes(Connection& c, int fd) {
    const ReadSection section(c, fd);
    return section && (has_bytes_in_memory(c) || has_held(c)) && (peer_has_ended(c, fd) || peer_has_gone(c, fd)) &&
           (has_bytes_in_memory(c) || take_held(c));
}

namespace {

// After a step that has failed: if the peer has ended, what was taken cannot be resent, but this process can still read
// it. `last_bytes`; 0: the kernel has the connection by now; else the step's result.
ssize_t keep_last_bytes(Connection& c, int fd, ssize_t step) {
    ConnectionState& s = *c.state.load();
    const ReadSection section(c, fd);
    if (!section) {
        return section.error() == gone ? 0 : step;
    }
    if (s.giving_back) {
        give_back_ended(c, fd, step);
    }
    if (s.broken || !has_bytes_in_memory(c) || !(peer_has_ended(c, fd) || peer_has_gone(c, fd))) {
        return step;
    }
    s.handed_over = false;
    return last_bytes;
}

// Until `end`. 0: done; -EAGAIN or `interrupted`: the service goes on, or, if it must not, the connection was reset;
// `last_bytes`: as keep_last_bytes(); else -errno, and it was reset.
ssize_t hand_over_until(Connection& c, int fd, Reason reason, uint64_t end, bool goes_on) {
    ConnectionState& s = *c.state.load();
    give_reason(s, reason);
    stats::refresh(c);
    if (gate::pin(s)) {
        return 0;
    }
    s.hold = true;
    const uint64_t begin = sys::now_ns();
    if (s.handed_over.exchange(true) && s.late) {
        end = goes_on ? begin : end; // a peer that has not answered delays one call, not each
    } else {
        s.late = false;
        begin_steps(s);
    }
    for (;;) {
        const ssize_t step = hand_over_step(c, fd);
        if (step == 0 || step == gone) {
            return 0;
        }
        if (step == elsewhere && !goes_on) {
            return io::foreign(c) ? 0 : -EAGAIN;
        }
        if (step == elsewhere) {
            service::ask_holder(s.holder_service, s.token);
        }
        const uint64_t now = sys::now_ns();
        const bool may_come = step == -EAGAIN || step == interrupted || step == elsewhere;
        if (may_come && now >= end && goes_on) {
            s.late = true;
            if (step != elsewhere) {
                service::go_on_with(c);
            }
            return step == interrupted ? step : -EAGAIN;
        }
        if (!may_come && goes_on) {
            if (const ssize_t kept = keep_last_bytes(c, fd, step); kept == 0 || kept == last_bytes) {
                return kept;
            }
        }
        if (!may_come || now >= end) {
            // The new holder would read frames as bytes: the connection is reset instead.
            reset(c, fd, reason);
            return step;
        }
        if (now - begin < short_wait_ns) {
            sched_yield();
        } else {
            sys::sleep_ms(pause_ms);
        }
    }
}

} // namespace

bool hand_over(Connection& c, int fd, Reason reason, uint64_t goes_on_at) {
    const bool goes_on = goes_on_at != 0;
    return hand_over_until(c, fd, reason, goes_on ? goes_on_at : sys::now_ns() + answer_limit_ns(c), goes_on) == 0;
}

ssize_t begin_to_hand_over(Connection& c, int fd, Reason reason) {
    return hand_over_until(c, fd, reason, sys::now_ns() + short_wait_ns, true);
}

void go_on_to_hand_over(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    const ssize_t step = hand_over_step(c, fd);
    if (step == -EAGAIN) {
        service::take_steps_at(std::max(s.next_step_ns.load(), sys::now_ns()));
    } else if (step < 0 && step > gone && s.late) {
        keep_last_bytes(c, fd, step);
        s.handed_over = false;
    }
}

} // namespace preload::stream
