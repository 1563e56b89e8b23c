// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Descriptors beside messages on unix sockets (SCM_RIGHTS).
#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include <sys/socket.h>
#include <sys/un.h>

namespace preload::rendezvous {

// Room for one descriptor, and the sender's credentials; more descriptors are closed.
union Control {
    cmsghdr header;
    char bytes[CMSG_SPACE(4 * sizeof(int)) + CMSG_SPACE(sizeof(ucred))];
};

// A message has at most so many beside it.
inline constexpr size_t max_passed = 2;

// fd < 0: none. to: of a socket that is not connected.
bool send_with(int socket, const void* data, size_t size, int fd, const sockaddr_un* to = nullptr, socklen_t length = 0,
               int second = -1);
// What came beside a message, and is the caller's: -1 for what did not come. More descriptors are closed.
using Passed = std::array<int, max_passed>;
Passed passed_descriptors(msghdr& message);
// recvmsg(2), without a wait, by a process whose numbers are the program's: they are kept (rendezvous/descriptors.hpp).
long receive_with(int socket, msghdr& message, Passed& passed);
bool is_own_user(uid_t user); // this process's, by both its real and its effective one
// Whether descriptors may be given to that user's processes.
bool is_trusted(uid_t user);
// The user of the process that a message comes from, on a socket with SO_PASSCRED.
std::optional<uid_t> sender_of(msghdr& message);
bool is_from_own_user(msghdr& message);

} // namespace preload::rendezvous
