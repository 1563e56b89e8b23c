// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/connection/stream_internal.hpp"

#include <linux/sockios.h>
#include <sys/mman.h>

#include "preload/base/system.hpp"
#include "preload/connection/gate.hpp"
#include "preload/connection/table.hpp"
#include "preload/rendezvous/service.hpp"
#include "preload/rules/decide.hpp"
#include "preload/stats/page.hpp"
#include "preload/stats/probes.hpp"

namespace preload::stream {

using path::Consent;
using path::Direction;

namespace {

// The bytes that have come, of which head are in the ring: all that TCP carried except frames, which are counted before
// they are sent.
uint64_t arrived_of(Connection& c, int fd, uint64_t head) {
    const ConnectionState& s = *c.state.load();
    const Direction& ring = c.in_ring();
    const uint32_t epoch = s.in_epoch.load();
    if ((epoch & 1) != 0 && ring.writer.epoch.load(std::memory_order_acquire) == epoch) {
        return head + s.received.load() - s.frames_seen;
    }
    int unread = 0;
    sys::ioctl(fd, SIOCINQ, &unread);
    return head + s.received.load() + static_cast<uint64_t>(unread) -
           ring.writer.frames.load(std::memory_order_acquire);
}

// How the reader's direction stands: POLLIN into events, or what to ask the kernel.
void look_in(Connection& c, int fd, short wanted, Readiness& r, uint64_t* arrived) {
    ConnectionState& s = *c.state.load();
    Direction& ring = c.in_ring();
    const uint64_t head = ring.writer.head.load(); // before the switch is looked for: this much is told of, too
    follow(c, fd, (wanted & POLLIN) == 0);
    if (s.taken != 0) {
        r.events |= POLLIN;
    }
    if (arrived != nullptr) {
        *arrived = arrived_of(c, fd, head);
    }
    if ((s.in_epoch.load() & 1) == 0) {
        r.kernel |= wanted & POLLIN;
        return;
    }
    if (!s.awaits_resume && !s.giving_back && ring.writer.head.load() != s.in.position) {
        r.events |= POLLIN;
    }
}

// Frame::resume waits for the program's next byte: a peer that closes is not to get anything that the program has not
// sent, since that resets the connection, and what the peer's kernel has not yet sent is lost. A peer that asks for
// what is in the ring waits for it, and is there.
void flush_if_awaited(Connection& c, int fd) {
    const ConnectionState& s = *c.state.load();
    if (has_backlog(s) || c.out_ring().writer.resent.load() + 1 == s.out_epoch.load()) {
        (void)flush_due(c, fd);
    }
}

void look_out(Connection& c, int fd, short wanted, Readiness& r) {
    ConnectionState& s = *c.state.load();
    if (is_recovering(c)) [[unlikely]] {
        r.soon = true;
        return;
    }
    advance_out(c);
    if ((s.out_epoch.load() & 1) != 0 && (wanted & POLLOUT) != 0) {
        uint64_t space = 0;
        if (!writable(c.out_ring(), s.out, space)) {
            s.broken = true;
            return;
        }
        // As the kernel: not for every byte, so that who waits can write more than a little.
        if (space > s.out.capacity() / 3 || may_grow(c.out_ring(), s.out)) {
            r.events |= POLLOUT;
            return;
        }
        if (!can_wait_for_space(c) && is_halted(s, s.out_epoch.load())) {
            // The peer is about to ask for the kernel, and cannot wake anybody: who waits looks again and again.
            r.soon = true;
            return;
        }
        if (!can_wait_for_space(c)) {
            return_out(c, false);
        }
    }
    if ((s.out_epoch.load() & 1) == 0) {
        flush_if_awaited(c, fd);
        if (has_backlog(s)) {
            service::ask_holder(s.holder_service, s.token); // which goes on when there is space
        }
        if (s.resume_due && !far_end_knows(c) && !s.ended) {
            r.soon = true;
            return;
        }
        r.kernel |= wanted & POLLOUT;
    }
}

void look_once(Connection& c, int fd, short wanted, uint64_t sleeper, Readiness& r, uint64_t* arrived) {
    ConnectionState& s = *c.state.load();
    {
        const ReadSection section(c, fd);
        if (!section) {
            r.blocked = true;
            return;
        }
        arm(c, POLLIN, sleeper);
        look_in(c, fd, wanted, r, arrived);
    }
    {
        const WriteSection section(c, fd);
        if (!section) {
            r.blocked = true;
            return;
        }
        arm(c, wanted & POLLOUT, sleeper);
        look_out(c, fd, wanted, r);
    }
    // Urgent data comes by TCP, once the writer has gone back to that.
    const bool may_be_urgent =
        (wanted & POLLPRI) != 0 && (c.in_ring().writer.epoch.load(std::memory_order_acquire) & 1) == 0;
    if (r.kernel != 0 || may_be_urgent || s.ended || s.broken || s.pending_error != 0) {
        pollfd one{fd, static_cast<short>(r.kernel | POLLRDHUP | POLLPRI), 0};
        if (sys::poll(&one, 1, 0) > 0) {
            short there = one.revents;
            if (c.mirrored && (is_proving(c) || is_recovering(c))) {
                there = static_cast<short>(there & ~POLLPRI); // an urgent byte of the library's
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
    if (s.pending_error != 0) {
        r.events |= static_cast<short>(POLLERR | (wanted & (POLLIN | POLLOUT)));
    }
}

} // namespace

Readiness look(Connection& c, int fd, short wanted, uint64_t sleeper, uint64_t* arrived) {
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
        if (is_recovering(c) && ((s.in_epoch.load() & 1) != 0 || s.far_record_seen)) {
            r.soon = true;
            return r;
        }
    }
    look_once(c, fd, wanted, path::nobody, r, arrived);
    if (!r.blocked && sleeper != path::nobody && (r.events & (wanted | POLLHUP | POLLERR)) == 0) {
        r = {};
        look_once(c, fd, wanted, sleeper, r, arrived);
        // Frames come as bytes, whatever the program waits for.
        const ConnectionState& s = *c.state.load();
        r.ring = r.kernel == 0 && !s.ended && !s.broken;
        if ((s.in_epoch.load() & 1) != 0) {
            r.kernel |= POLLIN;
        }
        r.kernel |= POLLRDHUP | (wanted & POLLPRI);
    }
    r.soon = r.soon && (r.events & (wanted | POLLHUP | POLLERR)) == 0;
    r.events |= (r.events & POLLIN) != 0 ? POLLRDNORM : 0;
    r.events |= (r.events & POLLOUT) != 0 ? POLLWRNORM : 0;
    return r;
}

bool wants_service(const Connection& c) {
    const ConnectionState& s = *c.state.load();
    return has_backlog(s) || s.giving_back || is_recovering(c) || has_to_say(c);
}

namespace {

// Of a connection to another host: its proof, or its end. False: there is nothing else to do for now.
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
            ssize_t error = 0;
            if (section && is_proving(c)) {
                hear(c, fd);
            }
            // EINVAL: there is no urgent byte.
            if (section && stage >= path::MirrorFields::proved &&
                sys::recv(fd, &byte, 1, MSG_OOB | MSG_PEEK | MSG_DONTWAIT) != -EINVAL) {
                if ((s.in_epoch.load() & 1) != 0) {
                    (void)take_frames(c, fd, true, error);
                } else if (is_at_mark(fd)) {
                    (void)take_record(c, fd);
                }
            }
        }
        const WriteSection section(c, fd);
        if (section) {
            say(c, fd);
            send_wanted_frame(c, fd);
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
    if (s.handed_over) {
        (void)hand_over_step(c, fd);
        return;
    }
    {
        const ReadSection section(c, fd);
        const uint32_t epoch = s.in_epoch.load();
        if (section && (epoch & 1) != 0) {
            space_made(c, fd);
        }
        if (section && (s.giving_back || c.in_ring().writer.clear.load() == (epoch | 1))) {
            begin_to_give_back(c);
            if (const ssize_t step = give_back_step(c, fd); step != -EAGAIN) {
                give_back_ended(c, fd, step);
            } else {
                service::ask(c.shared(), 1 - c.out_index());
            }
        }
    }
    const WriteSection section(c, fd);
    if (section) {
        if (path::requests(c.out_ring().reader.request.load(), s.out_epoch.load(), path::halt)) {
            (void)flush_due(c, fd);
        }
        advance_out(c);
        if ((s.out_epoch.load() & 1) != 0 && s.out.position != c.out_ring().reader.tail.load()) {
            data_written(c, fd);
        }
        const uint32_t request = c.out_ring().reader.request.load(std::memory_order_acquire);
        if (asked && path::requested_epoch(request) + 1 == s.out_epoch.load()) {
            (void)flush_due(c, fd); // the peer has threads that sleep, and wake by it
        } else if ((s.out_epoch.load() & 1) == 0) {
            flush_if_awaited(c, fd);
        }
    }
}

} // namespace

void attend(Connection& c, int fd) {
    attend_once(c, fd);
    if (c.state.load()->recovered) {
        settle(c, fd); // an end that only reads would not get there by itself
    }
}

namespace {

// The far end hears of a request a while later. An option that only the kernel has is to be true of what comes from
// then on, as far as that end's service answers.
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

void pin(Connection& c, int fd, Reason reason) {
    ConnectionState& s = *c.state.load();
    Reason none = Reason::none;
    s.reason.compare_exchange_strong(none, reason);
    if (!gate::pin(s)) { // it is careful
        s.hold = true;
        {
            const ReadSection section(c, fd);
            if (section) {
                const uint32_t theirs = c.in_ring().writer.epoch.load(std::memory_order_acquire);
                if ((theirs & 1) != 0) {
                    if (!s.read_shut) { // else its frame would be answered by a reset
                        c.in_ring().reader.request.store(path::request_of(theirs, path::return_to_kernel));
                    }
                } else if (uint32_t given = Consent::given; s.in_epoch.load() == theirs) {
                    c.in_ring().wake.consent.compare_exchange_strong(given, Consent::withheld);
                }
            }
        }
        changed(c);
        wait_for_return(c);
        attend(c, fd);
        if (c.segment.load() != nullptr && s.sleepers.load() != 0 && !s.read_shut) {
            service::ask(c.shared(), 1 - c.out_index()); // its frame wakes them
        }
    }
    stats::refresh(c);
}

bool prepare_close(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    bool unread = false;
    {
        const ReadSection section(c, fd);
        if (!section) {
            return false;
        }
        follow(c, fd, true);
        if (c.mirrored) {
            step_over_mark(fd);
        }
        unread = (s.in_epoch.load() & 1) != 0 && !s.ended && c.in_ring().writer.head.load() != s.in.position;
    }
    if (s.holders.load() == 1) {
        c.out_ring().writer.ends = 1;
    }
    if (s.holders.load() == 1 && !finish_out(c, fd)) {
        unread = true; // of what this end has sent, something is lost
    }
    const WriteSection section(c, fd);
    if (section) {
        c.out_ring().wake.space_wanted.store(0);
        if ((s.out_epoch.load() & 1) == 0) {
            flush_if_awaited(c, fd);
        }
    }
    return unread;
}

void note_reset(Connection& c, int fd) {
    linger how{};
    socklen_t length = sizeof(how);
    if (c.segment.load() != nullptr && sys::getsockopt(fd, SOL_SOCKET, SO_LINGER, &how, &length) == 0 &&
        how.l_onoff != 0 && how.l_linger == 0) {
        c.out_ring().writer.resets = 1;
        c.shared().mirror.closed = 2;
        RSPRELOAD_PROBE(reset, fd, static_cast<int>(Reason::none));
    }
}

namespace {

// Whether what the peer has not read has space in TCP, also if it reads no more.
bool fits_in_tcp(const Connection& c, int fd) {
    constexpr uint64_t always = 64 << 10;
    const ConnectionState& s = *c.state.load();
    const path::ReaderFields& reader = c.out_ring().reader;
    const uint64_t in_ring = s.out.position - reader.tail.load();
    const uint64_t in_tcp = s.sent.load() - reader.received.load();
    if (in_ring <= always && in_tcp <= always) {
        return true;
    }
    int buffer = 0;
    int queued = 0;
    socklen_t length = sizeof(buffer);
    // The kernel counts its own overhead, too, which is less than the bytes.
    return sys::getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, &length) == 0 &&
           sys::ioctl(fd, SIOCOUTQ, &queued) == 0 &&
           in_ring + in_tcp <= static_cast<uint64_t>(std::max(buffer - queued, 0)) / 2;
}

} // namespace

namespace {

// The end goes by TCP: everything in front of it has to be where the far end finds it.
void wait_for_far_end(Connection& c, int fd) {
    constexpr uint64_t patience_ns = 30000000000U; // a failure of the fabric is found sooner
    const ConnectionState& s = *c.state.load();
    const uint64_t begin = sys::now_ns();
    while (((s.resume_due && !far_end_knows(c)) || is_recovering(c)) && !s.broken && !s.ended &&
           sys::now_ns() - begin < patience_ns) {
        if (is_recovering(c)) {
            recover(c, fd);
        }
        (void)sys::poll(nullptr, 0, give_back_pause_ms);
    }
}

} // namespace

void prepare_shutdown(Connection& c, int fd, int how) {
    if (how == SHUT_RD) {
        return;
    }
    c.out_ring().writer.ends = 1;
    // The peer could not be woken any more when there is space for what it writes.
    pin(c, fd, Reason::half_closed);
    if (c.mirrored) {
        wait_for_far_end(c, fd);
    }
    // After the end of the stream, nothing can be sent again: the peer may hand the connection over.
    // Where TCP has no space for that, this call is not to wait until the peer reads.
    pollfd space{fd, POLLOUT, 0};
    if ((c.state.load()->gate.load() & gate::careful) != 0 && c.segment.load() != nullptr &&
        (is_awaited(c) || fits_in_tcp(c, fd)) && sys::poll(&space, 1, 0) > 0 && (space.revents & POLLOUT) != 0) {
        if (!clear_out(c, fd)) {
            const ReadSection section(c, fd);
            (void)(section ? violation(c, fd) : 0); // rather than an end in the middle
        }
    }
}

void settle(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    path::Segment* segment = c.segment.load();
    if (segment == nullptr || !s.hold || is_recovering(c)) {
        return;
    }
    // Of the last that two workers say, one never knows whether it has come: this end goes on to understand what the
    // other one may say by TCP about a failure.
    if (c.mirrored && !s.recovered && !s.handed_over && segment->mirror.stage.load() != path::MirrorFields::failed &&
        segment->mirror.stage.load() != path::MirrorFields::ended) {
        return;
    }
    Direction& in = c.in_ring();
    const uint32_t epoch = s.in_epoch.load();
    if ((s.out_epoch.load() & 1) != 0 || s.resume_due || s.pending_error != 0 || has_backlog(s) || s.taken != 0 ||
        (epoch & 1) != 0 || !is_clear(c.out_ring(), s.out_epoch.load())) {
        return;
    }
    uint32_t given = Consent::given;
    in.wake.consent.compare_exchange_strong(given, Consent::withheld);
    if (c.mirrored && in.wake.consent.load() == Consent::used) {
        if (segment->mirror.stage.load() >= path::MirrorFields::ended) {
            in.wake.consent.store(Consent::withheld); // nobody is left who could use it
        } else {
            segment->mirror.withdraw = 1;
            changed(c);
        }
    }
    if (in.wake.consent.load() != Consent::withheld || in.writer.epoch.load(std::memory_order_acquire) != epoch) {
        return;
    }
    leave_mirror(c);
    gate::restore_options(s, fd);
    if (s.recovered && s.attempts.fetch_add(1) + 1 < policy::max_attempts) {
        s.worth_at = std::max(s.calls.load(), 1U) * policy::retry_factor; // the fabric may be there again
    } else {
        s.gate.fetch_or(gate::pinned);
    }
    s.gate.fetch_and(~gate::careful);
}

} // namespace preload::stream
