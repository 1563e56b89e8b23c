// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Passing descriptors with messages on unix sockets (SCM_RIGHTS).
#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include <sys/socket.h>
#include <sys/un.h>

namespace preload::rendezvous {

// Space for four descriptors and the sender's credentials. Descriptors beyond max_passed are closed.
union Control {
    cmsghdr header;
    char bytes[CMSG_SPACE(4 * sizeof(int)) + CMSG_SPACE(sizeof(ucred))];
};

// Maximum number of descriptors that a message carries.
inline constexpr size_t max_passed = 2;

// fd < 0: none. to: the destination, on a socket that is not connected.
bool send_with(int socket, const void* data, size_t size, int fd, const sockaddr_un* to = nullptr, socklen_t length = 0,
               int second = -1);
// The descriptors that a message carried, owned by the caller; -1 for each missing one. Further ones are closed.
using Passed = std::array<int, max_passed>;
Passed passed_descriptors(msghdr& message);
// recvmsg(2), nonblocking, for a process that shares its fd numbers with the program: the descriptors are kept
// (rendezvous/descriptors.hpp). From a user who is not trusted, only those that can be closed without a delay.
// peer: the sender, on a connected socket; otherwise the socket has SO_PASSCRED.
long receive_with(int socket, msghdr& message, Passed& passed, std::optional<uid_t> peer);
bool is_own_user(uid_t user); // is this process's real and effective user
// Whether descriptors may be passed to that user's processes.
bool is_trusted(uid_t user);
// Closes a kept socket to that user's process, without a delay (rendezvous/discard.hpp).
void close_of_user(int socket, uid_t user);
// The user of the process that a message comes from, on a socket with SO_PASSCRED.
std::optional<uid_t> sender_of(msghdr& message);
bool is_from_own_user(msghdr& message);

} // namespace preload::rendezvous
