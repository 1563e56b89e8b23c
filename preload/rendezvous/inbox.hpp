// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The inbox of a service: a datagram socket with an abstract name made from the service's random number.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include <sys/un.h>

#include "preload/base/system.hpp"

namespace preload::rendezvous {

socklen_t service_address(uint64_t service, sockaddr_un& out);
// Nonblocking; each message carries the sender's credentials. -1: it cannot be opened.
int open_inbox(uint64_t service);
// Checks a descriptor that another process has passed.
bool is_eventfd(int fd);

// If this many messages were read at once, the inbox may have been full (net.unix.max_dgram_qlen), and further ones may
// have been refused: a requester also sets a flag in the connection's segment for that case (Segment::asked).
unsigned many_messages();

// 0, or -errno; -EAGAIN: its queue was full for all of that time. Services do not wait for each other's: two of them
// would deadlock.
template <class Message> long send_to(int from, uint64_t service, const Message& message, uint64_t timeout_ns = 0) {
    sockaddr_un to{};
    const socklen_t length = service_address(service, to);
    const uint64_t begin = timeout_ns != 0 ? sys::now_ns() : 0;
    for (;;) {
        const long sent =
            sys::call(SYS_sendto, from, &message, sizeof(message), MSG_DONTWAIT | MSG_NOSIGNAL, &to, length);
        if (sent != -EAGAIN) {
            return std::min(sent, 0L);
        }
        if (timeout_ns == 0 || sys::now_ns() - begin > timeout_ns) {
            return -EAGAIN;
        }
        sys::call(SYS_sched_yield);
    }
}

} // namespace preload::rendezvous
