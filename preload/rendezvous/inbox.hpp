// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Where a service is reached: a datagram socket with an abstract name, which its random number makes.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include <sys/un.h>

#include "preload/base/system.hpp"

namespace preload::rendezvous {

socklen_t service_address(uint64_t service, sockaddr_un& out);
// With the sender's credentials beside each message; it does not block. -1: it cannot be had.
int open_inbox(uint64_t service);
// Of a descriptor that somebody has passed.
bool is_eventfd(int fd);

// So many messages read at once may have been a full inbox (net.unix.max_dgram_qlen), and more may have found no room:
// who asks for a look at a connection leaves a mark in its segment for that (Segment::asked).
unsigned many_messages();

// 0, or -errno; -EAGAIN: its queue is full, and it has not read it in that time. A service gives the others none: two
// of them would wait for each other.
template <class Message> long send_to(int from, uint64_t service, const Message& message, uint64_t patience_ns = 0) {
    sockaddr_un to{};
    const socklen_t length = service_address(service, to);
    const uint64_t begin = patience_ns != 0 ? sys::now_ns() : 0;
    for (;;) {
        const long sent =
            sys::call(SYS_sendto, from, &message, sizeof(message), MSG_DONTWAIT | MSG_NOSIGNAL, &to, length);
        if (sent != -EAGAIN) {
            return std::min(sent, 0L);
        }
        if (patience_ns == 0 || sys::now_ns() - begin > patience_ns) {
            return -EAGAIN;
        }
        sys::call(SYS_sched_yield);
    }
}

} // namespace preload::rendezvous
