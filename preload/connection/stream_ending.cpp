// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Before a close or a shutdown in the kernel: nothing of the stream may be left where the peer could not get it any
// more, and no frame of the library may arrive where it would cause a reset.
#include "preload/connection/stream_internal.hpp"

#include <csignal>

#include <linux/sockios.h>
#include <sched.h>

#include "preload/base/system.hpp"
#include "preload/connection/gate.hpp"
#include "preload/connection/lifecycle.hpp"
#include "preload/rendezvous/service.hpp"
#include "preload/stats/probes.hpp"

namespace preload::stream {

using path::Consent;
using path::Direction;

namespace {

// Frames that the peer has counted by now arrive, or it finds that this end is closed, see send_frame(): it does one or
// the other without waiting for anything.
void await_frames_under_way(Connection& c, int fd) {
    constexpr uint64_t timeout_ns = 100000000U;
    constexpr int yields = 100;
    const ConnectionState& s = *c.state.load();
    const uint64_t begin = sys::now_ns();
    for (int round = 0; sys::now_ns() - begin < timeout_ns; ++round) {
        {
            const ReadSection section(c, fd);
            if (!section) {
                return;
            }
            follow(c, fd, true);
            // In an even epoch, unread data is bytes, which cause a reset in any case.
            if ((s.in_epoch.load() & 1) == 0 || c.in_ring().writer.frames.load() == s.frames_seen.load() || s.ended) {
                return;
            }
        }
        if (round < yields) {
            sched_yield();
            continue;
        }
        pollfd ended{fd, POLLRDHUP, 0};
        if (sys::poll(&ended, 1, 1) > 0) {
            return; // the peer may have been killed in between
        }
    }
}

} // namespace

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
    c.out_ring().writer.ends = path::ends_soon;
    if (!finish_out(c, fd)) {
        unread = true; // some of what this end has sent is lost
    }
    {
        const WriteSection section(c, fd);
        if (section) {
            c.out_ring().wake.space_wanted.store(path::nobody);
            if ((s.out_epoch.load() & 1) == 0) {
                flush_if_awaited(c, fd);
            }
        }
    }
    c.out_ring().writer.ends = path::ends_whole;
    if (!c.mirrored && !unread) {
        await_frames_under_way(c, fd);
    }
    if (s.open.load() != 0) { // a fork took place meanwhile
        (void)undo_close(c);
    }
    return unread;
}

bool undo_close(Connection& c) {
    uint32_t whole = path::ends_whole;
    if (!c.out_ring().writer.ends.compare_exchange_strong(whole, path::ends_soon)) {
        return false;
    }
    changed(c);
    return true;
}

void note_reset(Connection& c, int fd) {
    linger how{};
    socklen_t length = sizeof(how);
    if (c.segment.load() != nullptr && sys::getsockopt(fd, SOL_SOCKET, SO_LINGER, &how, &length) == 0 &&
        how.l_onoff != 0 && how.l_linger == 0) {
        c.out_ring().writer.resets = 1;
        c.shared().mirror.closed = path::MirrorFields::aborted;
        RSPRELOAD_PROBE(reset, fd, static_cast<int>(Reason::none));
    }
}

void undo_reset(Connection& c) {
    if (c.segment.load() != nullptr && !c.state.load()->broken) {
        c.out_ring().writer.resets = 0;
        uint32_t aborted = path::MirrorFields::aborted;
        c.shared().mirror.closed.compare_exchange_strong(aborted, path::MirrorFields::open);
    }
}

namespace {

// Whether TCP has space for what the peer has not read, even if it reads no more.
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
    // The kernel also counts its own overhead, which is less than the bytes.
    return sys::getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, &length) == 0 &&
           sys::ioctl(fd, SIOCOUTQ, &queued) == 0 &&
           in_ring + in_tcp <= static_cast<uint64_t>(std::max(buffer - queued, 0)) / 2;
}

} // namespace

namespace {

// Whether the far end may write to its ring, or has and may not be done. Requests it to return.
bool far_end_returns(Connection& c, int fd) {
    const ConnectionState& s = *c.state.load();
    const ReadSection section(c, fd);
    if (!section || c.shared().mirror.stage.load() != path::MirrorFields::moving) {
        return false;
    }
    Direction& in = c.in_ring();
    const uint32_t theirs = published_epoch(c);
    if ((theirs & 1) != 0) {
        const uint32_t request = path::request_of(theirs, path::return_to_kernel);
        if (path::requested_epoch(in.reader.request.load()) != theirs && !s.read_shut) {
            in.reader.request.store(request);
            changed(c);
        }
        return !s.read_shut;
    }
    uint32_t given = Consent::given;
    if (s.in_epoch.load() != theirs || in.wake.consent.compare_exchange_strong(given, Consent::withheld) ||
        in.wake.consent.load() != Consent::used) {
        return false;
    }
    if (c.shared().mirror.withdraw.exchange(1) == 0) {
        changed(c);
    }
    return true;
}

// A far end that has shut down its own direction still reads.
bool has_reader(const Connection& c, int fd) {
    pollfd one{fd, 0, 0};
    return c.shared().mirror.far_closed.load() == 0 && sys::poll(&one, 1, 0) == 0; // else POLLHUP, POLLERR
}

// EOF goes by TCP: everything in front of it must be where the far end finds it. Behind it, this end cannot report any
// more how far it has read if the fabric fails: so the far end returns first, if its program's service answers.
void wait_for_far_end(Connection& c, int fd) {
    constexpr uint64_t timeout_ns = 30000000000U; // a failure of the fabric is detected sooner
    constexpr uint64_t service_timeout_ns = 1000000000U;
    const ConnectionState& s = *c.state.load();
    const uint64_t begin = sys::now_ns();
    while (((s.resume_due && !far_end_knows(c)) || is_recovering(c) ||
            (!s.ended && far_end_returns(c, fd) && sys::now_ns() - begin < service_timeout_ns)) &&
           !s.broken && has_reader(c, fd) && sys::now_ns() - begin < timeout_ns) {
        if (is_recovering(c)) {
            recover(c, fd);
        }
        (void)sys::poll(nullptr, 0, give_back_pause_ms);
    }
}

} // namespace

void shut_now(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    const WriteSection section(c, fd); // the fd is still this connection's
    if (section && s.end_due.exchange(false)) {
        sys::call(SYS_shutdown, fd, SHUT_WR);
    }
}

namespace {

// One step. True: nothing is left that EOF must not overtake.
bool may_shut(Connection& c, int fd) {
    constexpr uint64_t timeout_ns = 5000000000U;
    const ConnectionState& s = *c.state.load();
    const uint32_t epoch = s.out_epoch.load();
    const ssize_t step = clear_step(c, fd);
    if (step != -EAGAIN) {
        return step != interrupted && step != elsewhere;
    }
    if (has_backlog(s)) {
        return false; // TCP reports space
    }
    // What was resent is in TCP, in front of EOF. A peer that does not answer reads the rest from the ring.
    const bool resent = !s.resume_due && c.out_ring().writer.resent.load() + 1 == s.out_epoch.load();
    return resent || sys::now_ns() - s.steps_since_ns.load() >= timeout_ns ||
           !(epoch != s.out_epoch.load() ? ask_for_step(c) : ask_seldom(c));
}

} // namespace

void shut_if_due(Connection& c, int fd) {
    if (c.state.load()->end_due && may_shut(c, fd)) {
        shut_now(c, fd);
    }
}

ssize_t refuse_write(int flags) {
    if ((flags & MSG_NOSIGNAL) == 0) {
        sys::call(SYS_tgkill, sys::call(SYS_getpid), sys::call(SYS_gettid), SIGPIPE);
    }
    return -EPIPE;
}

namespace {

// The kernel's shutdown(2) does not wait for the peer either: EOF follows the bytes. Returns as prepare_shutdown();
// -EAGAIN: there is no service.
int shut_without_waiting(Connection& c, int fd, int how) {
    ConnectionState& s = *c.state.load();
    begin_steps(s);
    s.end_due = true;
    const uint64_t begin = sys::now_ns();
    while (s.end_due && !may_shut(c, fd)) {
        if (sys::now_ns() - begin < short_wait_ns) {
            sched_yield();
            continue;
        }
        if (!service::go_on_with(c)) {
            s.end_due = false;
            return -EAGAIN;
        }
        if (how == SHUT_RDWR) {
            sys::call(SYS_shutdown, fd, SHUT_RD);
        }
        return -1;
    }
    return s.end_due.exchange(false) || how == SHUT_RDWR ? how : -1; // else the service has just done it
}

} // namespace

int prepare_shutdown(Connection& c, int fd, int how) {
    if (how == SHUT_RD) {
        return how;
    }
    const ConnectionState& s = *c.state.load();
    c.out_ring().writer.ends = path::ends_soon;
    // Afterwards, the peer could not be woken when there is space for what it writes.
    pin(c, fd, Reason::half_closed);
    if (c.mirrored) {
        wait_for_far_end(c, fd);
    }
    // Nothing can be resent after EOF, and the peer may hand the connection over. If TCP has no space for the ring's
    // bytes, EOF must not wait until the peer reads.
    pollfd space{fd, POLLOUT, 0};
    if ((s.gate.load() & gate::careful) == 0 || c.segment.load() == nullptr || !(is_awaited(c) || fits_in_tcp(c, fd)) ||
        sys::poll(&space, 1, 0) <= 0 || (space.revents & POLLOUT) == 0) {
        return s.end_due ? -1 : how;
    }
    if (!c.mirrored && !lifecycle::in_vfork_child()) {
        if (const int now = shut_without_waiting(c, fd, how); now != -EAGAIN) {
            return now;
        }
    }
    if (!clear_out(c, fd)) {
        const ReadSection section(c, fd);
        (void)(section ? violation(c, fd) : 0); // rather than EOF in the middle of the data
    }
    return how;
}

} // namespace preload::stream
