// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/rendezvous/passing.hpp"

#include <array>
#include <cstdint>
#include <cstring>

#include <sys/uio.h>

#include "preload/base/lowest_fd.hpp"
#include "preload/base/system.hpp"
#include "preload/connection/table.hpp"
#include "preload/rendezvous/descriptors.hpp"
#include "preload/rendezvous/discard.hpp"
#include "preload/rules/decide.hpp"

namespace preload::rendezvous {

bool send_with(int socket, const void* data, size_t size, int fd, const sockaddr_un* to, socklen_t length, int second) {
    const int fds[max_passed] = {fd, second};
    const size_t passed = second >= 0 ? 2 : 1;
    iovec part{const_cast<void*>(data), size};
    msghdr message{};
    message.msg_name = const_cast<sockaddr_un*>(to);
    message.msg_namelen = length;
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    Control control{};
    if (fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(passed * sizeof(int));
        cmsghdr* header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(passed * sizeof(int));
        memcpy(CMSG_DATA(header), fds, passed * sizeof(int));
    }
    return sys::call(SYS_sendmsg, socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<long>(size);
}

namespace {

// Calls body(fd) for each descriptor that the message carried.
template <class Body> void for_each_descriptor(msghdr& message, Body&& body) {
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; ++i) {
            int fd = -1;
            memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(fd));
            body(fd);
        }
    }
}

std::optional<ucred> credentials(msghdr& message) {
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_CREDENTIALS &&
            header->cmsg_len >= CMSG_LEN(sizeof(ucred))) {
            ucred who{};
            memcpy(&who, CMSG_DATA(header), sizeof(who));
            return who;
        }
    }
    return std::nullopt;
}

// As the only control message.
void put_credentials(msghdr& message, const std::optional<ucred>& who) {
    message.msg_controllen = who ? CMSG_SPACE(sizeof(ucred)) : 0;
    if (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr) {
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_CREDENTIALS;
        header->cmsg_len = CMSG_LEN(sizeof(ucred));
        memcpy(CMSG_DATA(header), &*who, sizeof(ucred));
    }
}

// As recvmsg. What does not fit into msg_control is closed by the kernel, before the call returns.
long receive_message(int socket, msghdr& message, int flags) {
    return sys::call(SYS_recvmsg, socket, &message, flags | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
}

// From a user who is not trusted. All descriptors are taken, so that the kernel closes none, and those whose close may
// wait are discarded.
long receive_from_stranger(int socket, msghdr& message, Passed& passed) {
    constexpr size_t most = 253; // SCM_MAX_FD of Linux
    alignas(cmsghdr) std::array<char, CMSG_SPACE(most * sizeof(int)) + CMSG_SPACE(sizeof(ucred))> control{};
    std::array<int, most> left{};
    left.fill(-1);
    msghdr whole = message;
    whole.msg_control = control.data();
    whole.msg_controllen = control.size();
    long n = 0;
    {
        const lowest_fd::Opening opening;
        n = receive_message(socket, whole, 0);
        if (n >= 0) {
            size_t found = 0;
            size_t more = 0;
            for_each_descriptor(whole, [&](int fd) {
                if (found < passed.size() && descriptors::is_harmless(fd)) {
                    passed[found++] = descriptors::keep(fd);
                } else if (uintptr_t before = 0; more < left.size() && table::put(fd, table::internal, before)) {
                    left[more++] = fd; // where it is: the program does not close it meanwhile
                } else {               // a number beyond the table
                    sys::call(SYS_close, fd);
                }
            });
        }
    }
    descriptors::discard(left);
    // The credentials are the caller's, too.
    const std::optional<ucred> who = n >= 0 ? credentials(whole) : std::nullopt;
    message.msg_flags = whole.msg_flags;
    put_credentials(message, who);
    return n;
}

} // namespace

Passed passed_descriptors(msghdr& message) {
    Passed passed;
    passed.fill(-1);
    size_t found = 0;
    for_each_descriptor(message, [&](int fd) {
        if (found < passed.size()) {
            passed[found++] = fd;
        } else {
            sys::call(SYS_close, fd);
        }
    });
    return passed;
}

long receive_with(int socket, msghdr& message, Passed& passed, std::optional<uid_t> peer) {
    passed.fill(-1);
    // Without space for descriptors, the kernel only reports that there are some.
    msghdr without = message;
    without.msg_controllen = peer ? 0 : CMSG_SPACE(sizeof(ucred));
    const long seen = receive_message(socket, without, MSG_PEEK);
    if (seen < 0) {
        return seen;
    }
    if ((without.msg_flags & MSG_CTRUNC) == 0) {
        message.msg_controllen = peer ? 0 : CMSG_SPACE(sizeof(ucred));
        return receive_message(socket, message, 0);
    }
    const std::optional<uid_t> sender = peer ? peer : sender_of(without);
    if (!sender || !is_trusted(*sender)) {
        return receive_from_stranger(socket, message, passed);
    }
    const lowest_fd::Opening opening;
    const long n = receive_message(socket, message, 0);
    if (n >= 0) { // an empty message may carry descriptors, too
        passed = passed_descriptors(message);
        for (int& fd : passed) {
            fd = descriptors::keep(fd);
        }
    }
    return n;
}

bool is_own_user(uid_t user) {
    return user == static_cast<uid_t>(sys::call(SYS_geteuid)) && user == static_cast<uid_t>(sys::call(SYS_getuid));
}

bool is_trusted(uid_t user) { return is_own_user(user) && !policy::test_strangers(); }

void close_of_user(int socket, uid_t user) {
    if (is_trusted(user)) {
        descriptors::close(socket);
    } else {
        descriptors::discard(socket);
    }
}

std::optional<uid_t> sender_of(msghdr& message) {
    const std::optional<ucred> who = credentials(message);
    return who ? std::optional<uid_t>(who->uid) : std::nullopt;
}

bool is_from_own_user(msghdr& message) {
    const std::optional<uid_t> sender = sender_of(message);
    return sender && is_own_user(*sender);
}

} // namespace preload::rendezvous
