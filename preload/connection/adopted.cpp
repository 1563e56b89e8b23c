// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Connections that existed before this process had them: from the program that executed it, or by SCM_RIGHTS.
#include "preload/connection/lifecycle.hpp"

#include <atomic>

#include <netinet/in.h>

#include "preload/base/system.hpp"
#include "preload/connection/gate.hpp"
#include "preload/connection/made_sockets.hpp"
#include "preload/connection/positions.hpp"

namespace preload::lifecycle {

namespace {

bool is_tcp(int fd) {
    int protocol = 0;
    int domain = 0;
    socklen_t length = sizeof(int);
    if (sys::getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &length) != 0 || protocol != IPPROTO_TCP) {
        return false;
    }
    length = sizeof(int);
    return sys::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 &&
           (domain == AF_INET || domain == AF_INET6);
}

// Another fd of the same socket, which has that cookie: this process has passed it, or received it before. -1: there is
// none.
int fd_of_same_socket(uint64_t cookie) {
    int found = -1;
    table::for_each_connection([&](int other, Connection& c) {
        const ConnectionState& s = *c.state.load();
        const bool was_passed = c.role == Role::adopted || (s.gate.load() & gate::pinned) != 0 || s.hold.load();
        if (found >= 0 || cookie == 0 || !was_passed) {
            return;
        }
        const uint64_t known = s.cookie.load(std::memory_order_relaxed);
        if ((known == 0 || known == cookie) && cookie_of(other) == cookie) {
            found = other;
        }
    });
    return found;
}

} // namespace

void adopt(int fd) {
    if (in_vfork_child()) {
        return;
    }
    const sys::ErrnoKept kept;
    made_sockets::note(fd, false);
    int listens = 0;
    socklen_t length = sizeof(listens);
    if (!is_tcp(fd) || sys::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0) {
        if (table::connection(fd) != nullptr) {
            forget(fd);
        }
        return;
    }
    if (listens != 0) {
        return;
    }
    Positions now;
    if (table::connection(fd) != nullptr || !read_positions(fd, now) || !now.established) {
        made_sockets::note(fd, table::connection(fd) == nullptr); // may be connected later
        return;
    }
    const uint64_t cookie = cookie_of(fd);
    if (const int other = fd_of_same_socket(cookie); other >= 0) {
        duplicate(other, fd); // two connections would each move bytes past the other
        return;
    }
    if (Connection* c = began(fd, Role::adopted); c != nullptr) {
        ConnectionState& s = *c->state.load();
        s.adopted = true;
        s.cookie = cookie;
        s.received_base = now.received;
        s.sent_base = now.sent;
    }
}

void adopt_inherited() {
    // Standard input and output of a server that inetd starts, and a few more fds that programs pass on.
    constexpr int max_fds = 32;
    for (int fd = 0; fd < max_fds; ++fd) {
        adopt(fd);
    }
}

} // namespace preload::lifecycle
