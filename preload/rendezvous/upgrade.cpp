// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/rendezvous/upgrade.hpp"

#include <array>
#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <sys/socket.h>

#include "preload/base/system.hpp"
#include "preload/connection/gate.hpp"
#include "preload/connection/kept_state.hpp"
#include "preload/connection/positions.hpp"
#include "preload/connection/table.hpp"
#include "preload/rendezvous/holders.hpp"
#include "preload/rendezvous/passing.hpp"
#include "preload/rendezvous/service.hpp"
#include "preload/rendezvous/users.hpp"
#include "preload/rules/decide.hpp"

namespace preload::rendezvous {

namespace {

bool has_time_limit(int fd) {
    for (const int name : {SO_RCVTIMEO, SO_SNDTIMEO}) {
        timeval limit{};
        socklen_t length = sizeof(limit);
        if (sys::getsockopt(fd, SOL_SOCKET, name, &limit, &length) != 0 || limit.tv_sec != 0 || limit.tv_usec != 0) {
            return true;
        }
    }
    return false;
}

// Options that only the kernel implements, see calls/sockets.cpp: set before the connection was tracked, or at the
// listener that it comes from.
bool has_kernel_option(int fd) {
    constexpr std::pair<int, int> greatest_harmless[] = {{SO_RCVLOWAT, 1}, {SO_PEEK_OFF, -1}, {SO_TIMESTAMPING, 0}};
    for (const auto& [name, most] : greatest_harmless) {
        std::array<int, 2> value{most, 0}; // SO_TIMESTAMPING has two values
        socklen_t length = sizeof(value);
        if (sys::getsockopt(fd, SOL_SOCKET, name, value.data(), &length) == 0 && value[0] > most) {
            return true;
        }
    }
    socklen_t instructions = 0;
    const long filter = sys::getsockopt(fd, SOL_SOCKET, SO_GET_FILTER, nullptr, &instructions);
    return filter == -EACCES || (filter == 0 && instructions > 0); // an eBPF program cannot be read, but is attached
}

// Signals instead of events (O_ASYNC): set before the connection was tracked, or by another program.
bool signals(int fd) {
    const long flags = sys::call(SYS_fcntl, fd, F_GETFL, 0);
    return (flags > 0 && (flags & O_ASYNC) != 0) || sys::call(SYS_fcntl, fd, F_GETSIG, 0) > 0;
}

// The role decides which end's worker connects. Urgent bytes must stay out of the program's bytes.
bool may_take_fabric(const Connection& c) {
    int in_line = 0;
    socklen_t length = sizeof(in_line);
    return policy::fabric_allowed() && (c.role == Role::connect || c.role == Role::accept) &&
           c.state.load()->uncounted == Uncounted::no &&
           sys::call(SYS_fcntl, c.fd.load(), F_GETOWN, 0) == 0 && // no process gets SIGURG
           sys::getsockopt(c.fd.load(), SOL_SOCKET, SO_OOBINLINE, &in_line, &length) == 0 && in_line == 0;
}

} // namespace

Outcome unanswered(const Upgrade& upgrade) {
    Positions now;
    if (table::connection(upgrade.fd) == upgrade.connection && read_positions(upgrade.fd, now) && now.established) {
        return failure(Reason::no_peer);
    }
    return failure(Reason::young);
}

Outcome examine(Connection& c, Upgrade& out) {
    out.connection = &c;
    out.fd = c.fd.load();
    const KeptState kept(c, out.fd);
    if (!kept || !Ends::of(out.fd, out.ends)) {
        return failure(Reason::none);
    }
    if (out.ends.own == out.ends.peer) {
        return failure(Reason::self_connected, true);
    }
    if (const Reason reason = decide(out.ends, c.role); reason != Reason::none) {
        return failure(reason, true);
    }
    if (has_kernel_option(out.fd)) {
        return failure(Reason::option, true);
    }
    if (signals(out.fd)) {
        return failure(Reason::asynchronous, true);
    }
    Positions before;
    Positions after;
    uint64_t peer_received = 0;
    if (!read_positions(out.fd, before)) {
        return failure(Reason::none);
    }
    if (!before.established) {
        return failure(Reason::half_closed, true);
    }
    switch (peer_owner(out.fd, out.ends, out.user, peer_received)) {
    case Owner::elsewhere: // also once it is closed
        if (!read_positions(out.fd, after) || !after.established) {
            return failure(Reason::young, true);
        }
        return failure(Reason::other_netns, true);
    case Owner::absent: // also after a reset
        if (!read_positions(out.fd, after) || !after.established) {
            return failure(Reason::young, true);
        }
        if (!may_take_fabric(c)) {
            return failure(Reason::remote, true);
        }
        out.remote = true;
        break;
    case Owner::closed:
        return failure(Reason::young, true);
    case Owner::unaccepted:
        return failure(Reason::none); // try again later
    case Owner::not_now:
        return failure(Reason::no_memory);
    case Owner::unknown:
        return failure(Reason::sandboxed, true);
    case Owner::found:
        if (may_be_anyone(out.user)) {
            return failure(Reason::other_user, true); // a stranger at the meeting would have the same id
        }
        out.remote = policy::test_fabric() && may_take_fabric(c);
        break;
    }
    std::atomic<Uncounted>& uncounted = kept.get()->uncounted;
    if ((c.role == Role::adopted || uncounted != Uncounted::no) && !is_sole_holder(out.fd)) {
        return failure(Reason::several); // another process may still close it, or move bytes past the library
    }
    Uncounted moved = Uncounted::yes;
    uncounted.compare_exchange_strong(moved, Uncounted::before);
    if (c.role == Role::adopted) {
        // Whether the SYN counts is known once the peer has all that was sent. One more than the peer has may also be a
        // byte in flight.
        const uint64_t ahead = before.sent - peer_received;
        if (!read_positions(out.fd, after) || after.sent != before.sent || ahead > 1 ||
            (ahead == 1 && before.unacknowledged != 0)) {
            return failure(Reason::none);
        }
        kept.get()->connected_out = static_cast<uint8_t>(ahead);
    } else {
        kept.get()->connected_out = c.role == Role::connect ? 1 : 0;
    }
    return going_on;
}

namespace {

// Under both locks. False: the connection is closed, or is no longer the one of the agreement.
bool set_segment(const Upgrade& upgrade, ConnectionState& s, path::Segment* segment, uint64_t token, unsigned direction,
                 Reason& why) {
    Connection& c = *upgrade.connection;
    if (!s.read_lock.acquire()) {
        return false;
    }
    bool done = false;
    if (s.write_lock.acquire()) {
        Ends now;
        if (table::connection(upgrade.fd) == &c && (s.gate.load() & (gate::careful | gate::pinned)) == 0 &&
            Ends::of(upgrade.fd, now) && now.own == upgrade.ends.own && now.peer == upgrade.ends.peer) {
            path::unmap_segment(c.segment.exchange(nullptr));
            s.in = s.out = s.out_before = {};
            s.in_epoch = s.out_epoch = 0;
            s.frames_seen = 0;
            s.resume_seen = false;
            s.awaits_resume = false;
            s.resent_to = s.given_back_to = 0;
            s.giving_back = s.handed_over = false;
            s.peer_gone = false;
            s.peer_closed_ns = s.peer_asked_ns = 0;
            s.taken = s.taken_read = 0;
            s.unread_due_ns = 0;
            s.nudged_ns = 0;
            s.held_since_ns = 0;
            s.woken_readers = 0;
            for (uint8_t*& area : c.give_back) {
                path::unmap_give_back(std::exchange(area, nullptr));
            }
            s.token = token;
            c.same_user = is_trusted(upgrade.user);
            c.peer_user = upgrade.user;
            segment->direction[direction].writer.wakes = 1;
            c.asked_for = 0;
            c.guard = Guard::none;
            c.guarded = 0;
            s.time_limits = has_time_limit(upgrade.fd);
            s.holder_service = service::own_name();
            s.hold = false;
            s.out_direction = direction;
            c.mirrored = upgrade.remote;
            if (upgrade.remote) {
                s.fabric_since_ns = sys::now_ns();
            }
            s.urgent_number = s.urgent_byte = 0;
            s.recovery = Recovery::none;
            s.recovered = s.far_record_seen = false;
            s.record_since_ns = 0;
            s.sends_no_record = false;
            s.reason = Reason::none;
            c.segment = segment;
            // A process forked before has no mapping of the segment; one forked from now on has. fork increments
            // holders first.
            done = s.holders.load() == 1;
            c.attached = done;
            if (!done) {
                c.segment = nullptr;
                why = Reason::several;
            }
        }
        s.write_lock.release();
    }
    s.read_lock.release();
    return done;
}

} // namespace

bool attach(const Upgrade& upgrade, path::Segment* segment, uint64_t token, unsigned direction, Reason& why) {
    {
        // Until the end: closed in between, its state would be wanted as another connection's.
        const KeptState kept(*upgrade.connection, upgrade.fd);
        if (!kept || !set_segment(upgrade, *kept.get(), segment, token, direction, why)) {
            return false;
        }
        gate::want(*upgrade.connection, upgrade.fd);
    }
    service::note_token(token, *upgrade.connection);
    return true;
}

} // namespace preload::rendezvous
