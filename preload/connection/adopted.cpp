// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Connections that existed before this process had them: from the program that executed it, or by SCM_RIGHTS.
#include "preload/connection/lifecycle.hpp"

#include <array>

#include <netinet/in.h>
#include <sys/stat.h>

#include "preload/base/system.hpp"
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
    if (Connection* c = began(fd, Role::adopted); c != nullptr) {
        ConnectionState& s = *c->state.load();
        s.adopted = true;
        s.received_base = now.received;
        s.sent_base = now.sent;
    }
}

void adopt_inherited() {
    // Standard input and output of a server that inetd starts, and a few more fds that programs pass on.
    constexpr int max_fds = 32;
    std::array<ino_t, max_fds> inodes{};
    for (int fd = 0; fd < max_fds; ++fd) {
        adopt(fd);
        struct stat info {};
        if (table::connection(fd) == nullptr || fstat(fd, &info) != 0) {
            continue;
        }
        inodes[static_cast<size_t>(fd)] = info.st_ino;
        // One connection may have several fds.
        for (int before = 0; before < fd; ++before) {
            if (inodes[static_cast<size_t>(before)] == info.st_ino) {
                duplicate(before, fd);
                break;
            }
        }
    }
}

} // namespace preload::lifecycle
