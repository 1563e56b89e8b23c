// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The readiness of a connection for waiters, the service's work on it, and its return to the kernel.
#include "preload/connection/stream_internal.hpp"

#include <algorithm>

#include "preload/base/system.hpp"
#include "preload/connection/gate.hpp"
#include "preload/rendezvous/service.hpp"
#include "preload/rules/decide.hpp"
#include "preload/stats/page.hpp"

namespace preload::stream {

using path::Consent;
using path::Direction;

void flush_if_awaited(Connection& c, int fd) {
    const ConnectionState& s = *c.state.load();
    if (has_backlog(s) || c.out_ring().writer.resent.load() + 1 == s.out_epoch.load()) {
        flush_due(c, fd);
    }
}

namespace {

// The bytes that have arrived, `head` of them by the ring: all that TCP carried except frames, which are counted before
// they are sent.
uint64_t arrived_of(Connection& c, int fd, uint64_t head) {
    const ConnectionState& s = *c.state.load();
    const Direction& ring = c.in_ring();
    const uint32_t epoch = s.in_epoch.load();
    if ((epoch & 1) != 0 && ring.writer.epoch.load(std::memory_order_acquire) == epoch) {
        return head + s.received.load() - s.frames_seen;
    }
    const long unread = std::max(unread_with_hidden(c, fd), 0L);
    if (c.mirrored || s.recovered) [[unlikely]] {
        // The worker reports frames late. None are unread in front of a switch, or behind Frame::resume.
        const bool switched = (epoch & 1) == 0 && published_epoch(c) != epoch;
        const uint64_t limit = switched                            ? ring.writer.switch_at.load() - s.received.load()
                               : (epoch & 1) == 0 || s.resume_seen ? UINT64_MAX
                                                                   : 0;
        return head + s.received.load() - s.frames_seen + std::min<uint64_t>(static_cast<uint64_t>(unread), limit);
    }
    return head + s.received.load() + static_cast<uint64_t>(unread) -
           ring.writer.frames.load(std::memory_order_acquire);
}

// The readiness of the reader's direction: POLLIN in events, or what to poll the kernel for.
void check_input(Connection& c, int fd, short wanted, Readiness& r, uint64_t* arrived) {
    ConnectionState& s = *c.state.load();
    Direction& ring = c.in_ring();
    const uint64_t head = ring.writer.head.load(); // before the check for a switch: these bytes are reported, too
    // Where frames are reported late, bytes behind Frame::resume have not arrived before it is consumed.
    follow(c, fd, (wanted & POLLIN) == 0 || (arrived != nullptr && c.mirrored), true);
    if (s.taken != 0) {
        r.events |= POLLIN;
        note_taken_reported(c);
    }
    if (arrived != nullptr) {
        *arrived = arrived_of(c, fd, head);
    }
    if ((s.in_epoch.load() & 1) == 0) {
        if (c.mirrored && !is_proving(c) && is_at_mark(fd) && take_record(c, fd) != 0) {
            r.soon = true; // poll(2) reports the record as bytes
            return;
        }
        r.kernel |= wanted & POLLIN;
        return;
    }
    if (!s.awaits_resume && !s.giving_back && ring.writer.head.load() != s.in.position) {
        r.events |= POLLIN;
    }
}

bool has_switched_lately(const ConnectionState& s) {
    constexpr uint64_t timeout_ns = 1000000000;
    return sys::now_ns() - s.switched_ns.load() < timeout_ns;
}

void check_output(Connection& c, int fd, short wanted, Readiness& r) {
    ConnectionState& s = *c.state.load();
    if (is_recovering(c)) [[unlikely]] {
        r.soon = true;
        return;
    }
    if (s.end_due) { // as in the kernel
        r.events |= static_cast<short>((wanted & POLLOUT) | (s.read_shut ? POLLHUP : 0));
        return;
    }
    advance_out(c);
    if ((s.out_epoch.load() & 1) != 0 && (wanted & POLLOUT) != 0) {
        uint64_t space = 0;
        if (!writable(c.out_ring(), s.out, space)) {
            reset(c, fd);
            return;
        }
        // Not for every byte, like the kernel, so that a waiter can write more than a little.
        if (space > s.out.capacity() / 3 || may_grow(c.out_ring(), s.out)) {
            r.events |= POLLOUT;
            return;
        }
        push_held(c, fd);
        // The peer cannot wake waiters: they poll repeatedly, if only for a while. The peer is about to request the
        // kernel, or has still to read bytes that came by TCP before the ring, and then to switch as well.
        if (!can_wait_for_space(c) && is_halted(s, s.out_epoch.load())) {
            r.soon = true;
            return;
        }
        if (!can_wait_for_space(c) && has_switched_lately(s)) {
            ask_to_switch(c);
            r.soon = true;
            return;
        }
        if (!can_wait_for_space(c)) {
            return_out(c, false);
        } else {
            note_full(c);
        }
    }
    if ((s.out_epoch.load() & 1) == 0) {
        flush_if_awaited(c, fd);
        if (has_backlog(s)) {
            service::ask_holder(s.holder_service, s.token); // which continues when there is space
        }
        if (s.resume_due && !far_end_knows(c)) {
            r.soon = true; // unless the peer has gone: see check_once()
            return;
        }
        r.kernel |= wanted & POLLOUT;
    }
}

// With a sleeper it is the second check, see check().
void check_once(Connection& c, int fd, short wanted, uint64_t sleeper, Readiness& r, uint64_t* arrived) {
    ConnectionState& s = *c.state.load();
    {
        const ReadSection section(c, fd);
        if (!section) {
            r.blocked = true;
            return;
        }
        arm(c, POLLIN, sleeper);
        check_input(c, fd, wanted, r, arrived);
        // Behind Frame::resume are the program's bytes, which wait until the ring is drained.
        r.frames = (s.in_epoch.load() & 1) != 0 && !s.resume_seen;
    }
    {
        const WriteSection section(c, fd);
        if (!section) {
            r.blocked = true;
            return;
        }
        arm(c, wanted & POLLOUT, sleeper);
        check_output(c, fd, wanted, r);
    }
    // Urgent data comes by TCP, once the writer has returned to it.
    const bool may_be_urgent = (wanted & POLLPRI) != 0 && (published_epoch(c) & 1) == 0;
    if (r.kernel != 0 || may_be_urgent || s.ended || s.read_shut || s.broken || s.pending_error != 0) {
        pollfd one{fd, static_cast<short>(r.kernel | POLLRDHUP | POLLPRI), 0};
        if (sys::poll(&one, 1, 0) > 0) {
            short there = one.revents;
            if (c.mirrored && (is_proving(c) || is_recovering(c))) {
                there = static_cast<short>(there & ~POLLPRI); // an urgent byte of the library
            }
            if ((there & (POLLRDHUP | POLLHUP | POLLERR)) != 0) {
                s.ended = true;
                there |= wanted & POLLIN;
            }
            if ((there & (POLLHUP | POLLERR)) != 0) {
                there |= wanted & POLLOUT;
            }
            r.events |= there;
        }
    }
    if (s.broken) { // whatever the kernel says: it may not have been disconnected
        r.events |= static_cast<short>(POLLERR | POLLHUP | (wanted & (POLLIN | POLLOUT)));
    }
    if (s.pending_error != 0) {
        r.events |= static_cast<short>(POLLERR | (wanted & (POLLIN | POLLOUT)));
    }
}

} // namespace

namespace {

bool has_failed(int fd) {
    pollfd one{fd, 0, 0};
    return sys::poll(&one, 1, 0) > 0;
}

} // namespace

Readiness check(Connection& c, int fd, short wanted, uint64_t sleeper, uint64_t* arrived) {
    wanted |= (wanted & POLLRDNORM) != 0 ? POLLIN : 0;
    wanted |= (wanted & POLLWRNORM) != 0 ? POLLOUT : 0;
    Readiness r;
    if (gives_back(c, fd)) [[unlikely]] {
        r.soon = true;
        return r;
    }
    if (is_recovering(c)) [[unlikely]] {
        recover(c, fd);
        const ConnectionState& s = *c.state.load();
        // Behind Frame::resume, the ring is drained first.
        const bool odd = (s.in_epoch.load() & 1) != 0;
        if (is_recovering(c) && !has_failed(fd) && (odd ? !ring_has_bytes(c) : s.far_record_seen.load())) {
            r.soon = true;
            return r;
        }
    }
    check_once(c, fd, wanted, path::nobody, r, arrived);
    if (!r.blocked && sleeper != path::nobody && (r.events & (wanted | POLLHUP | POLLERR)) == 0) {
        r = {};
        check_once(c, fd, wanted, sleeper, r, arrived);
        // Frames arrive as bytes, whatever the program waits for.
        const ConnectionState& s = *c.state.load();
        r.ring = r.kernel == 0 && !s.ended && !s.broken;
        if (!s.ended) { // else these are always there
            r.kernel |= static_cast<short>((r.frames ? POLLIN : 0) | POLLRDHUP);
        }
        r.kernel |= wanted & POLLPRI;
    }
    r.events |= (r.events & POLLIN) != 0 ? POLLRDNORM : 0;
    r.events |= (r.events & POLLOUT) != 0 ? POLLWRNORM : 0;
    return r;
}

bool wants_service(const Connection& c) {
    const ConnectionState& s = *c.state.load();
    return has_backlog(s) || s.giving_back || s.end_due || is_recovering(c) || has_urgent_to_send(c);
}

namespace {

// For a connection to another host: its proof, or its end. False: nothing else can be done for now.
bool attend_mirrored(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    const uint32_t stage = c.shared().mirror.stage.load(std::memory_order_acquire);
    if (stage == path::MirrorFields::failed) {
        s.hold = true;
        return true;
    }
    if (stage < path::MirrorFields::lost && !is_recovering(c)) {
        {
            const ReadSection section(c, fd);
            uint8_t byte = 0;
            if (section && is_proving(c)) {
                receive_urgent(c, fd);
            }
            // EINVAL: there is no urgent byte.
            if (section && stage >= path::MirrorFields::proved &&
                sys::recv(fd, &byte, 1, MSG_OOB | MSG_PEEK | MSG_DONTWAIT) != -EINVAL) {
                if ((s.in_epoch.load() & 1) != 0) {
                    take_present_frames(c, fd);
                } else if (is_at_mark(fd)) {
                    take_record(c, fd);
                }
            }
        }
        const WriteSection section(c, fd);
        if (section) {
            send_urgent(c, fd);
            send_wanted_frame(c, fd);
        }
        if (section && s.refused && far_end_knows(c)) {
            s.refused = false;
            wake_everybody(c);
        }
    }
    if (stage == path::MirrorFields::lost || is_recovering(c)) {
        recover(c, fd);
    }
    return !is_recovering(c);
}

} // namespace

namespace {

void attend_once(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    if (c.mirrored && !s.recovered && (s.gate.load() & gate::careful) != 0 && !attend_mirrored(c, fd)) {
        return;
    }
    const bool asked = !c.mirrored || c.shared().mirror.asked.exchange(0) != 0;
    shut_if_due(c, fd);
    if (s.handed_over) {
        go_on_to_hand_over(c, fd);
        return;
    }
    {
        const ReadSection section(c, fd);
        const uint32_t epoch = s.in_epoch.load();
        if (section && (epoch & 1) != 0) {
            space_made(c, fd);
        }
        // Without memory to take them to, the bytes are read where they are: the peer waits for that, if not for ever.
        if (section && (s.giving_back || (c.in_ring().writer.clear.load() == (epoch | 1) && can_take(c)))) {
            begin_to_give_back(c);
            if (const ssize_t step = give_back_step(c, fd); step != -EAGAIN) {
                give_back_ended(c, fd, step);
            } else {
                ask_for_step(c);
            }
        }
    }
    const WriteSection section(c, fd);
    if (section) {
        if (path::requests(c.out_ring().reader.request.load(), s.out_epoch.load(), path::halt)) {
            flush_due(c, fd);
        }
        advance_out(c);
        if ((s.out_epoch.load() & 1) != 0 && s.out.position != c.out_ring().reader.tail.load()) {
            data_written(c, fd);
        }
        const uint32_t request = c.out_ring().reader.request.load(std::memory_order_acquire);
        const uint32_t epoch = s.out_epoch.load();
        if ((epoch & 1) == 0 && asked && path::requested_epoch(request) + 1 == epoch &&
            !path::requests(request, epoch - 1, path::return_quietly)) {
            wake_by_tcp(c, fd);
        } else if ((epoch & 1) == 0) {
            flush_if_awaited(c, fd);
        }
    }
}

} // namespace

void attend(Connection& c, int fd) {
    attend_once(c, fd);
    if (c.state.load()->recovered) {
        settle(c, fd); // an end that only reads would not settle by itself
    }
}

namespace {

// A step is due although no event may come. TCP reports space for a backlog.
bool has_steps(const ConnectionState& s) {
    return (s.gate.load() & gate::careful) != 0 &&
           ((s.end_due && !has_backlog(s)) || (s.handed_over && s.late && s.giving_back));
}

} // namespace

void begin_steps(ConnectionState& s) {
    s.steps_since_ns = sys::now_ns();
    s.next_step_ns = 0;
}

uint64_t on_time(Connection& c, int fd, uint64_t now) {
    constexpr uint64_t min_pause_ns = 1000000U;
    constexpr uint64_t max_pause_ns = 100000000U;
    constexpr uint64_t share = 8; // of the time so far: a peer that does not answer costs less and less
    ConnectionState& s = *c.state.load();
    const uint64_t due =
        std::min(leave_full_ring(c, fd, now) ? now + full_ring_pause_ns : UINT64_MAX, wake_reader(c, fd, now));
    if (!has_steps(s)) {
        return due;
    }
    if (now >= s.next_step_ns) {
        const uint64_t since = std::min(s.steps_since_ns.load(), now);
        s.next_step_ns = now + std::clamp((now - since) / share, min_pause_ns, max_pause_ns);
        attend(c, fd);
    }
    return has_steps(s) ? std::min(due, s.next_step_ns.load()) : due;
}

namespace {

// The far end sees a request with a delay. An option that only the kernel has must apply to what comes from then on, if
// that end's service answers.
void wait_for_return(const Connection& c) {
    constexpr uint64_t limit_ns = 50000000U;
    const uint64_t begin = sys::now_ns();
    const auto pending = [&] {
        const uint32_t theirs = c.in_ring().writer.epoch.load(std::memory_order_acquire);
        return (theirs & 1) != 0 && path::requested_epoch(c.in_ring().reader.request.load()) == theirs;
    };
    while (c.mirrored && c.shared().mirror.stage.load() == path::MirrorFields::moving && pending() &&
           sys::now_ns() - begin < limit_ns) {
        const timespec pause{0, 20000};
        sys::call(SYS_nanosleep, &pause, nullptr);
    }
}

} // namespace

bool request_return(Connection& c) {
    ConnectionState& s = *c.state.load();
    const uint32_t theirs = published_epoch(c);
    const uint32_t epoch = (theirs & 1) != 0 ? theirs : s.in_epoch.load();
    if ((epoch & 1) == 0) {
        return false;
    }
    if (!s.read_shut && !s.giving_back && !s.handed_over) { // these two request more than that
        c.in_ring().reader.request.store(path::request_of(epoch, path::return_to_kernel));
    }
    return true;
}

void pin(Connection& c, int fd, Reason reason) {
    if (c.role == Role::listen) {
        return; // it is the kernel's in any case, and its options are checked again for each accepted socket
    }
    ConnectionState& s = *c.state.load();
    give_reason(s, reason);
    if (!gate::pin(s)) { // it is careful
        s.hold = true;
        if (reason == Reason::option) {
            s.resent_to = 0; // TCP_ULP: fewer bytes are read than TCP carries
        }
        {
            const ReadSection section(c, fd);
            if (uint32_t given = Consent::given; section && !request_return(c)) {
                c.in_ring().wake.consent.compare_exchange_strong(given, Consent::withheld);
            }
        }
        changed(c);
        wait_for_return(c);
        attend(c, fd);
        if (c.segment.load() != nullptr && needs_frame(c) && !s.read_shut) {
            service::ask(c.shared(), 1 - c.out_index()); // its frame wakes them
        }
    }
    stats::refresh(c);
}

void settle(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    path::Segment* segment = c.segment.load();
    if (segment == nullptr || !s.hold || is_recovering(c)) {
        return;
    }
    // The far end may still send an urgent byte, which nobody would take: unread, it turns the new holder's close into
    // a reset. The worker says when it has sent its last one, unless it has ended, or has failed with a proof of which
    // only the far end knows whether it is complete.
    constexpr uint64_t worker_limit_ns = 6000000000U; // it waits for five seconds itself
    if (is_proving(c) && s.handed_over && sys::now_ns() - s.steps_since_ns.load() < worker_limit_ns) {
        if (c.shared().mirror.withdraw.exchange(1) == 0) {
            changed(c);
        }
        return;
    }
    // Of two workers, the sender of the last message has no proof that it has arrived: this end keeps processing what
    // the far end may send by TCP about a failure.
    if (c.mirrored && !s.recovered && !s.handed_over && segment->mirror.stage.load() != path::MirrorFields::failed &&
        segment->mirror.stage.load() != path::MirrorFields::ended) {
        return;
    }
    if (s.recovered && !s.handed_over && !s.giving_back && s.sleepers.load() > own_sleeps) {
        return; // else one that has moved a part of its bytes would return
    }
    Direction& in = c.in_ring();
    const uint32_t epoch = s.in_epoch.load();
    if ((s.out_epoch.load() & 1) != 0 || s.resume_due || s.pending_error != 0 || has_backlog(s) || s.taken != 0 ||
        (epoch & 1) != 0 || (!s.handed_over && !s.giving_back && lacks_resent_bytes(c)) ||
        (!s.recovered && !is_clear(c.out_ring(), s.out_epoch.load()))) {
        return;
    }
    uint32_t given = Consent::given;
    in.wake.consent.compare_exchange_strong(given, Consent::withheld);
    if (c.mirrored && in.wake.consent.load() == Consent::used) {
        if (segment->mirror.stage.load() >= path::MirrorFields::ended) {
            in.wake.consent.store(Consent::withheld); // no process is left that could use it
        } else {
            segment->mirror.withdraw = 1;
            changed(c);
        }
    }
    if (in.wake.consent.load() != Consent::withheld || published_epoch(c) != epoch) {
        return;
    }
    shut_now(c, fd);
    if (s.end_due) {
        return;
    }
    if (c.mirrored) {
        if (const ReadSection section(c, fd); section) {
            step_over_mark(fd);
        }
    }
    leave_mirror(c);
    gate::restore_options(s, fd);
    if (s.recovered) {
        retry_fabric_later(s, true);
    } else {
        s.gate.fetch_or(gate::pinned);
    }
    s.gate.fetch_and(~gate::careful);
}

} // namespace preload::stream
