// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The inbox of a service: a datagram socket with an abstract name. Everyone can read the name, and could send
// descriptors there, which the kernel would close in the service's thread if nothing else took them. So each message
// begins with the service's random number, which only the peers of its connections know, and from which the name is
// made in a way that cannot be reverted. The kernel drops other messages in their sender's thread.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <span>

#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

#include "preload/base/system.hpp"
#include "preload/rendezvous/message.hpp"

namespace preload::rendezvous {

socklen_t service_address(uint64_t service, sockaddr_un& out);
// Nonblocking; each message carries the sender's credentials, and the number. -1: it cannot be opened.
int open_inbox(uint64_t service);
// Checks a descriptor that another process has passed.
bool is_eventfd(int fd);

// If this many messages were read at once, the inbox may have been full (net.unix.max_dgram_qlen), and further ones may
// have been refused: a requester also sets a flag in the connection's segment for that case (Segment::asked).
unsigned many_messages();

// Of the longest message, and one more.
inline constexpr size_t inbox_bytes = sizeof(uint64_t) + std::max(sizeof(WakeupWanted), sizeof(WakeupGiven)) + 1;
// Sends it with both descriptors, or those that are not negative. False: it could not be sent.
bool give_wakeup(int from, uint64_t service, const WakeupGiven& given, int fd, int page);
// The message behind the number in what an inbox has received; empty: there is none.
inline std::span<const uint8_t> delivered(std::span<const uint8_t> bytes, uint64_t service) {
    uint64_t number = 0;
    if (bytes.size() < sizeof(number)) {
        return {};
    }
    memcpy(&number, bytes.data(), sizeof(number));
    return number == service ? bytes.subspan(sizeof(number)) : std::span<const uint8_t>();
}

// 0, or -errno; -EAGAIN: its queue was full for all of that time. Services do not wait for each other's: two of them
// would deadlock.
template <class Message> long send_to(int from, uint64_t service, const Message& message, uint64_t timeout_ns = 0) {
    sockaddr_un to{};
    iovec parts[] = {{&service, sizeof(service)}, {const_cast<Message*>(&message), sizeof(message)}};
    msghdr header{};
    header.msg_name = &to;
    header.msg_namelen = service_address(service, to);
    header.msg_iov = parts;
    header.msg_iovlen = 2;
    const uint64_t begin = timeout_ns != 0 ? sys::now_ns() : 0;
    for (;;) {
        const long sent = sys::call(SYS_sendmsg, from, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
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
