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

// 0, or -errno; -EAGAIN: its queue is full, and it reads it.
template <class Message> long send_to(int from, uint64_t service, const Message& message) {
    sockaddr_un to{};
    const socklen_t length = service_address(service, to);
    // A full queue is being read.
    constexpr int max_attempts = 1000;
    for (int i = 0; i < max_attempts; ++i) {
        const long sent =
            sys::call(SYS_sendto, from, &message, sizeof(message), MSG_DONTWAIT | MSG_NOSIGNAL, &to, length);
        if (sent != -EAGAIN) {
            return std::min(sent, 0L);
        }
        sys::call(SYS_sched_yield);
    }
    return -EAGAIN;
}

} // namespace preload::rendezvous
