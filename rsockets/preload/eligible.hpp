// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What the kernel says of a socket, before it is carried.
#pragma once

#include <cstring>

#include <netinet/in.h>
#include <sys/socket.h>

namespace preload {

inline sockaddr* generic(sockaddr_storage& address) { return reinterpret_cast<sockaddr*>(&address); }
inline const sockaddr* generic(const sockaddr_storage& address) { return reinterpret_cast<const sockaddr*>(&address); }

inline bool eligible_address(const sockaddr* address, socklen_t length) {
    if (address == nullptr || length < sizeof(sa_family_t) || length > sizeof(sockaddr_storage)) {
        return false;
    }
    return (address->sa_family == AF_INET && length >= sizeof(sockaddr_in)) ||
           (address->sa_family == AF_INET6 && length >= sizeof(sockaddr_in6));
}

// A TCP socket that is neither connected nor listening, and that the rules let be carried. If not: why.
bool eligible_socket(int fd, const char*& reason);

// It has a port or an address of its own.
bool is_bound(const sockaddr_storage& address);

} // namespace preload
