// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Hands a connection over to a holder that does not use the ring: another program after exec, another process that
// gets the descriptor. All unread bytes must come by the kernel, in order.
//
// Only the peer can put bytes into the kernel's connection. So the reader takes all bytes in front of the ring's (what
// TCP has carried up to the switch), writes them to the give-back area, and requests the peer to send these, and then
// the unread ones in the ring, by TCP (Request::resend). If the peer has returned to the kernel already, it must stop
// first, at a position that both ends know: Request::halt makes it switch to the ring once more.
//
// If the peer wants that, to shut down or to hand over its own end, a wait may have reported bytes to the program just
// before. Until the peer is asked to send them again, the program may read what was taken.
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

using path::Consent;
using path::Direction;

namespace {

constexpr uint64_t timeout_ns = 5000000000U;
constexpr int pause_ms = 1;
constexpr uint64_t reading_time_ns = 5000000U; // for a process that goes on reading, before the peer is asked

// Null: no memory.
uint8_t* area_of_taken(Connection& c) {
    const unsigned direction = 1 - c.out_index();
    uint8_t*& area = c.give_back[direction];
    if (area == nullptr) {
        area = path::map_give_back(c.segment.load(), direction);
    }
    return area;
}

// Where the next bytes are taken to, and how many there is space for. Null: no space or no memory.
uint8_t* space_for_taken(Connection& c, uint64_t& space) {
    const ConnectionState& s = *c.state.load();
    uint8_t* area = area_of_taken(c);
    space = path::give_back_bytes - s.taken;
    return area != nullptr && space != 0 ? area + s.taken : nullptr;
}

// Some bytes were read here, and are not given back any more.
void forget_read(Connection& c) {
    ConnectionState& s = *c.state.load();
    if (uint8_t* area = s.taken_read != 0 ? area_of_taken(c) : nullptr; area != nullptr) {
        s.taken -= s.taken_read;
        memmove(area, area + s.taken_read, s.taken);
        s.taken_read = 0;
    }
}

ssize_t take_from_kernel(Connection& c, int fd, uint64_t until) {
    ConnectionState& s = *c.state.load();
    while (s.received.load() < until) {
        uint64_t space = 0;
        uint8_t* to = space_for_taken(c, space);
        if (to == nullptr) {
            return -ENOBUFS;
        }
        const long n = sys::recv(fd, to, std::min(space, until - s.received.load()), MSG_DONTWAIT);
        if (n <= 0) {
            return n == 0 ? -ECONNRESET : n;
        }
        count_received(c, static_cast<uint64_t>(n));
        s.taken += static_cast<uint64_t>(n);
    }
    return 0;
}

ssize_t take_from_ring(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    Direction& ring = c.in_ring();
    const uint8_t* memory = path::ring_memory(c.segment.load(), 1 - c.out_index());
    for (;;) {
        uint64_t count = 0;
        if (!readable(ring, s.in, count)) {
            return violation(c, fd);
        }
        if (count == 0) {
            return 0;
        }
        uint64_t space = 0;
        uint8_t* to = space_for_taken(c, space);
        if (to == nullptr) {
            return -ENOBUFS;
        }
        const size_t n = s.in.contiguous(std::min(count, space));
        memcpy(to, memory + s.in.offset_of(s.in.position), n);
        s.in.position += n;
        s.taken += n;
        ring.reader.given_back.store(s.taken); // before the tail, see is_clear()
        ring.reader.tail.store(s.in.position);
    }
}

// 0: Frame::resume was consumed.
ssize_t take_resume(Connection& c, int fd) {
    const ConnectionState& s = *c.state.load();
    ssize_t error = -EAGAIN;
    if (!s.resume_seen && take_frames(c, fd, false, error) == Taken::end) {
        return -ECONNRESET;
    }
    return s.resume_seen ? 0 : error;
}

// The peer may still answer a request, unless it has ended in the epoch in which the request was made.
ssize_t wait_for_peer(Connection& c, int fd, uint32_t epoch) {
    if (!peer_has_ended(c, fd) && !peer_has_gone_meanwhile(c, fd)) {
        return -EAGAIN;
    }
    return c.in_ring().writer.epoch.load() == epoch ? -ECONNRESET : -ERESTART;
}

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

namespace {

// All that was taken was read here meanwhile. False: the peer has begun to halt, and waits for the next request.
bool withdraw_halt(Connection& c, uint32_t epoch) {
    Direction& ring = c.in_ring();
    if (!path::requests(ring.reader.request.load(), epoch, path::halt)) {
        return true;
    }
    uint32_t consent = Consent::given;
    if (!ring.wake.consent.compare_exchange_strong(consent, Consent::withheld) && consent == Consent::used) {
        return false;
    }
    ring.reader.request.store(path::request_of(0, path::return_quietly));
    return true;
}

} // namespace

ssize_t give_back_step(Connection& c, int fd) {
    constexpr int max_epochs = 16; // at once: a peer that switches endlessly would keep this thread here
    ConnectionState& s = *c.state.load();
    Direction& ring = c.in_ring();
    forget_read(c);
    for (int turn = 0;; ++turn) {
        const uint32_t epoch = s.in_epoch.load();
        const uint32_t theirs = published_epoch(c);
        if (s.broken || theirs - epoch > 2 || turn > max_epochs) {
            return violation(c, fd);
        }
        if ((epoch & 1) == 0) {
            if (theirs == epoch) {
                if (s.taken == 0 && withdraw_halt(c, epoch)) {
                    return 0;
                }
                // A reader that was told of these bytes has time to read them, which is simpler, too.
                if (may_read_taken(c) && sys::now_ns() - s.giving_since_ns.load() < reading_time_ns) {
                    return -EAGAIN;
                }
                if (s.taken != 0) {
                    uint32_t withheld = Consent::withheld;
                    ring.wake.consent.compare_exchange_strong(withheld, Consent::given);
                    ring.reader.request.store(path::request_of(epoch, path::halt));
                    changed(c);
                }
                if (const ssize_t result = wait_for_peer(c, fd, epoch); result != -ERESTART) {
                    return result;
                }
                continue;
            }
            if (const ssize_t error = take_from_kernel(c, fd, ring.writer.switch_at.load()); error < 0) {
                return error;
            }
            follow_to(c, epoch + 1);
            continue;
        }
        if (theirs == epoch) {
            s.awaits_resume = true;
            ring.reader.given_back.store(s.taken, std::memory_order_release);
            ring.reader.request.store(path::request_of(epoch, path::resend));
            changed(c);
            if (const ssize_t result = wait_for_peer(c, fd, epoch); result != -ERESTART) {
                return result;
            }
            continue;
        }
        const bool resent = ring.writer.resent.load(std::memory_order_acquire) == epoch && s.awaits_resume;
        if (!resent) {
            s.awaits_resume = false;
            if (const ssize_t error = take_from_ring(c, fd); error < 0) {
                return error;
            }
        }
        if (const ssize_t error = take_resume(c, fd); error < 0) {
            // It waits for the peer's next byte, see flush_if_awaited(), unless the epoch was requested to end.
            const uint32_t request = ring.reader.request.load();
            if (error == -EAGAIN &&
                (path::requested_epoch(request) != epoch || path::requests(request, epoch, path::return_quietly))) {
                ring.reader.request.store(path::request_of(epoch, path::return_to_kernel));
            }
            return error;
        }
        if (resent) {
            s.given_back_to = s.received.load() + s.taken + (ring.writer.head.load() - s.in.position);
            s.taken = 0;
            ring.reader.given_back = 0;
            s.in.position = ring.writer.head.load(); // behind what was resent
            ring.reader.tail.store(s.in.position);
        }
        follow_to(c, epoch + 1);
    }
}

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
    (void)(progress() != before ? ask_for_step(c) : ask_seldom(c));
    return -EAGAIN;
}

bool gives_back(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    if (!s.giving_back) [[likely]] {
        return false;
    }
    const ReadSection section(c, fd);
    if (!section || !s.giving_back) {
        return s.giving_back;
    }
    if (!s.handed_over) { // the service may be busy
        const uint32_t before = c.in_ring().reader.request.load();
        if (const ssize_t step = give_back_step(c, fd); step != -EAGAIN) {
            give_back_ended(c, fd, step);
            return false;
        }
        // A busy service may have missed a request.
        (void)(c.in_ring().reader.request.load() != before ? ask_for_step(c) : ask_seldom(c));
    }
    if (!s.handed_over && // else the service goes on, as long as the peer is there
        static_cast<int64_t>(sys::now_ns() - s.giving_since_ns.load()) > static_cast<int64_t>(timeout_ns)) {
        s.giving_back = false;
        (void)violation(c, fd);
    }
    return !may_read_taken(c);
}

// A far end learns too late that a request was withdrawn.
bool may_read_taken(const Connection& c) {
    const ConnectionState& s = *c.state.load();
    return s.taken != 0 && !s.awaits_resume && !s.handed_over && !c.mirrored;
}

bool lacks_given_back(const Connection& c, int fd) {
    const ConnectionState& s = *c.state.load();
    return s.giving_back ? !may_read_taken(c)
                         : (s.received.load() < s.given_back_to.load() && unread_in_kernel(fd) == 0);
}

bool await_given_back(Connection& c, int fd, uint64_t begin) {
    constexpr uint64_t call_limit_ns = 1000000U;
    constexpr uint64_t limit_ns = 10000000U; // of all calls: a peer that does not answer costs no more than that
    const uint64_t end =
        std::min(begin + call_limit_ns, c.state.load()->giving_since_ns.load(std::memory_order_relaxed) + limit_ns);
    while (gives_back(c, fd) || lacks_given_back(c, fd)) {
        if (sys::now_ns() > end) {
            return false;
        }
        sched_yield();
    }
    return sys::now_ns() <= end;
}

bool can_take(Connection& c) { return area_of_taken(c) != nullptr; }

void begin_to_give_back(Connection& c) {
    ConnectionState& s = *c.state.load();
    if (s.giving_back) {
        return;
    }
    forget_read(c);
    s.giving_since_ns = sys::now_ns();
    s.peer_asked_ns = 0;
    s.giving_back = true;
}

void give_back_ended(Connection& c, int fd, ssize_t result) {
    ConnectionState& s = *c.state.load();
    s.giving_back = false;
    if (result == 0) {
        return;
    }
    if (!peer_has_ended(c, fd) && !peer_has_gone(c, fd)) {
        (void)violation(c, fd);
        return;
    }
    // Nothing is resent any more: taken bytes are read from the area.
    c.in_ring().reader.request.store(path::request_of(0, path::return_quietly));
    s.awaits_resume = false;
}

ssize_t read_taken(Connection& c, Parts& parts, int flags) {
    ConnectionState& s = *c.state.load();
    const uint8_t* area = area_of_taken(c);
    if (area == nullptr) {
        return -ENOMEM;
    }
    const uint64_t n = std::min(s.taken.load() - s.taken_read, parts.size());
    if ((flags & MSG_TRUNC) != 0) {
        parts.skip(n);
    } else {
        parts.put(area + s.taken_read, n);
    }
    if ((flags & MSG_PEEK) != 0) {
        return static_cast<ssize_t>(n);
    }
    s.taken_read += n;
    s.giving_since_ns = sys::now_ns(); // it has begun to read them
    if (s.taken_read == s.taken) {
        s.taken = s.taken_read = 0;
        c.in_ring().reader.given_back = 0;
        c.in_ring().reader.epoch.store(s.in_epoch.load(), std::memory_order_release);
    }
    return static_cast<ssize_t>(n);
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
    constexpr uint64_t limit_ns = 100000000U;
    constexpr uint64_t limit_of_far_end_ns = 1000000000U; // with two workers and the fabric in between
    return has_unsent(*c.state.load()) || is_awaited(c) || peer_has_taken(c) ? timeout_ns
           : c.mirrored                                                      ? limit_of_far_end_ns
                                                                             : limit_ns;
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
        (void)sys::poll(nullptr, 0, pause_ms);
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
        if (!(std::exchange(asked_epoch, epoch) != epoch ? ask_for_step(c) : ask_seldom(c)) && !has_backlog(s)) {
            return true; // the peer's process has ended
        }
        if (sys::now_ns() - begin < short_wait_ns) {
            sched_yield();
        } else if (!may_wait && has_backlog(s)) {
            return false; // TCP has no space
        } else {
            (void)sys::poll(nullptr, 0, pause_ms);
        }
    } while (sys::now_ns() - begin < limit);
    return false;
}

} // namespace

bool finish_out(Connection& c, int fd, bool may_wait) {
    push(c, fd);
    const bool done = finish_resend(c, fd, may_wait || c.mirrored);
    const ConnectionState& s = *c.state.load();
    if (s.end_due && s.open.load() != 0) { // for others, which do not hear of this process's service any more
        if (has_backlog(s)) {
            (void)service::ask_holder(s.holder_service, s.token);
        } else {
            shut_now(c, fd);
        }
    }
    return done;
}

bool writes_by_kernel(Connection& c, int fd) {
    const ssize_t step = clear_step(c, fd);
    if (step == -EAGAIN) {
        (void)ask_seldom(c);
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
            return io::foreign(c, fd) ? 0 : -EAGAIN;
        }
        if (step == elsewhere) {
            (void)service::ask_holder(s.holder_service, s.token);
        }
        const uint64_t now = sys::now_ns();
        const bool may_come = step == -EAGAIN || step == interrupted || step == elsewhere;
        if (may_come && now >= end && goes_on) {
            s.late = true;
            if (step != elsewhere) {
                (void)service::go_on_with(c);
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
            (void)violation(c, fd, reason);
            return step;
        }
        if (now - begin < short_wait_ns) {
            sched_yield();
        } else {
            (void)sys::poll(nullptr, 0, pause_ms);
        }
    }
}

} // namespace

bool hand_over(Connection& c, int fd, Reason reason, uint64_t goes_on_at) {
    const bool goes_on = goes_on_at != 0;
    return hand_over_until(c, fd, reason, goes_on ? goes_on_at : sys::now_ns() + timeout_ns, goes_on) == 0;
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
        (void)keep_last_bytes(c, fd, step);
        s.handed_over = false;
    }
}

} // namespace preload::stream
