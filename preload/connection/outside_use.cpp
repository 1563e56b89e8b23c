// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/connection/outside_use.hpp"

#include <fcntl.h>
#include <unistd.h>

#include "preload/base/system.hpp"
#include "preload/connection/lifecycle.hpp"
#include "preload/connection/positions.hpp"
#include "preload/connection/stream.hpp"
#include "preload/connection/table.hpp"
#include "preload/stats/page.hpp"
#include "preload/stats/settings.hpp"

namespace preload::outside_use {

namespace {

bool is_standard(int fd) { return fd >= STDIN_FILENO && fd <= STDERR_FILENO; }

// A child of vfork may have put something else under the number.
bool is_same_socket(const Connection& c, int fd) {
    const uint64_t wanted = c.state.load()->cookie.load();
    return wanted == 0 || cookie_of(fd) == wanted;
}

void hand_over_to_program(Connection& c, int fd, uint64_t goes_on_at = 0) {
    if (c.role != Role::listen && is_same_socket(c, fd)) {
        stream::hand_over(c, fd, Reason::executed, goes_on_at);
    }
}

bool is_inheritable(int fd) {
    const long flags = sys::call(SYS_fcntl, fd, F_GETFD, 0);
    return flags >= 0 && (flags & FD_CLOEXEC) == 0;
}

// More than a program would mean to give to another one: it has them without FD_CLOEXEC because it does not care.
constexpr size_t max_meant = 16;

bool are_leaked() {
    size_t count = 0;
    table::for_each_connection([&](int fd, Connection& c) {
        count += !is_standard(fd) && c.segment.load() != nullptr && is_inheritable(fd) ? 1 : 0;
    });
    return count > max_meant;
}

} // namespace

void hand_over_inheritable(bool executes) {
    constexpr uint64_t longest_delay_ns = 250000000; // of all together: peers may be stopped
    const sys::ErrnoKept kept;
    const bool leaked = are_leaked();
    const uint64_t goes_on_at = sys::now_ns() + longest_delay_ns;
    table::for_each_connection([&](int fd, Connection& c) {
        if (!is_inheritable(fd)) {
            return;
        }
        // The program could not get unread bytes of a peer that has ended, but this process can still read them, and
        // most programs inherit what they do not use.
        const bool goes_on = !executes || c.state.load()->holders.load() > 1;
        const bool may_be_unused = !is_standard(fd) && goes_on;
        if (may_be_unused && (leaked || stream::has_last_bytes(c, fd))) {
            return;
        }
        // Also one that is not careful yet: its upgrade may be agreed on already, by this process or by its parent, and
        // would take effect while the program uses it.
        hand_over_to_program(c, fd, may_be_unused ? goes_on_at : 0);
    });
}

void hand_over_duplicated(int fd) {
    if (Connection* c = table::connection(fd); c != nullptr && lifecycle::in_vfork_child()) {
        const sys::ErrnoKept kept;
        hand_over_to_program(*c, fd);
    }
}

void hand_over(int fd, Reason reason) {
    if (Connection* c = table::connection(fd); c != nullptr) {
        const sys::ErrnoKept kept;
        c->standard = false;
        stream::hand_over(*c, fd, reason);
    }
}

void note_number(Connection& c, int fd) {
    if (!is_standard(fd) || c.role == Role::listen || settings::stdio_is_unused()) {
        return;
    }
    if (give_reason(*c.state.load(), Reason::stdio)) {
        c.standard = true;
    }
    stream::hand_over(c, fd, Reason::stdio);
}

// A server that was started with the connection as fd 0 may have moved it to another fd.
void leave_standard_number(Connection& c) {
    if (!c.standard || table::connection(STDIN_FILENO) == &c || table::connection(STDOUT_FILENO) == &c ||
        table::connection(STDERR_FILENO) == &c) {
        return;
    }
    c.standard = false;
    ConnectionState& s = *c.state.load();
    Reason stdio = Reason::stdio;
    if (s.reason.compare_exchange_strong(stdio, Reason::none)) {
        stats::refresh(c);
        s.gate.fetch_and(~gate::pinned);
    }
}

} // namespace preload::outside_use
