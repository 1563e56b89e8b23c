// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Whether the peer can still answer. Its FIN says that it cannot, but FIN comes behind all bytes: as long as those do
// not fit into the window, and this end does not read, the socket shows nothing.
#include "preload/connection/stream_internal.hpp"

#include <linux/sockios.h>

#include "preload/base/system.hpp"
#include "preload/connection/lifecycle.hpp"
#include "preload/rendezvous/ends.hpp"

namespace preload::stream {

namespace {

// A service goes on with what a close has left to it, see stream_ending.cpp, but takes no requests for it.
bool has_closed_for_long(Connection& c) {
    constexpr int64_t long_ns = 500000000; // a close that a fork has overtaken is undone, usually sooner
    std::atomic<uint64_t>& since = c.state.load()->peer_closed_ns;
    if (c.in_ring().writer.ends.load() != path::ends_whole) {
        since = 0;
        return false;
    }
    const uint64_t now = sys::now_ns();
    uint64_t seen = 0;
    if (since.compare_exchange_strong(seen, now)) {
        return false;
    }
    return static_cast<int64_t>(now - seen) > long_ns;
}

bool is_owned_by_nobody(int fd) {
    rendezvous::Ends ends;
    uid_t user = 0;
    uint64_t received = 0;
    return rendezvous::Ends::of(fd, ends) &&
           rendezvous::peer_owner(fd, ends, user, received) == rendezvous::Owner::closed;
}

} // namespace

bool peer_has_ended(Connection& c, int fd) {
    pollfd one{fd, POLLRDHUP, 0};
    return c.state.load()->peer_gone || sys::poll(&one, 1, 0) > 0;
}

bool peer_has_gone(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    if (s.peer_gone) {
        return true;
    }
    int unread = 0;
    const bool may_hide_end = sys::ioctl(fd, SIOCINQ, &unread) == 0 && unread != 0;
    if (c.mirrored) { // its worker may still deliver what was sent
        return may_hide_end && has_closed_for_long(c);
    }
    // A child of vfork has the memory of its parent, but other descriptors.
    if (may_hide_end && !lifecycle::in_vfork_child() && is_owned_by_nobody(fd)) {
        s.peer_gone = true;
    }
    // Without unread bytes, FIN cannot be late: another program has the socket, and nobody answers.
    return s.peer_gone || (has_closed_for_long(c) && (may_hide_end || !ask_seldom(c)));
}

bool peer_has_gone_meanwhile(Connection& c, int fd) {
    constexpr uint64_t pause_ns = 10000000U;
    ConnectionState& s = *c.state.load();
    const uint64_t now = sys::now_ns();
    uint64_t due = s.peer_asked_ns.load();
    if (now < due || s.peer_gone) {
        return s.peer_gone;
    }
    // The first question is asked when there was no answer for a while.
    return s.peer_asked_ns.compare_exchange_strong(due, now + pause_ns) && due != 0 && peer_has_gone(c, fd);
}

} // namespace preload::stream
