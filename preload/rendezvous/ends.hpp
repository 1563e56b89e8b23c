// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The two ends of a TCP connection: their addresses, which of them is the first, and which user owns the other one.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

namespace preload::rendezvous {

// An IPv4 address has the form ::ffff:a.b.c.d, whatever the socket's family is.
struct Address {
    std::array<uint8_t, 16> bytes{};
    uint16_t port = 0; // host byte order

    // Empty: it is not an internet address.
    static std::optional<Address> from(const sockaddr_storage& socket);
    [[nodiscard]] bool is_ipv4() const;
    auto operator<=>(const Address&) const = default;
};

struct Ends {
    Address own;
    Address peer;

    // False: it is not connected, or not an internet socket.
    static bool of(int fd, Ends& out);
    // The end with the smaller address listens for the other one, and is the first to switch.
    [[nodiscard]] bool is_first() const { return own < peer; }
    // The same connection as its other end sees it.
    [[nodiscard]] Ends reversed() const { return {peer, own}; }
    auto operator<=>(const Ends&) const = default;
    // The abstract name at which both meet; the same at both ends.
    socklen_t meeting_name(sockaddr_un& out) const;
};

enum class Owner : uint8_t { found, absent, elsewhere, unaccepted, closed, not_now, unknown };

// The owner of the socket at the other end of fd, from NETLINK_SOCK_DIAG (sock_diag(7)). absent: there is no such
// socket in this network namespace. elsewhere: fd itself is not of the namespace of this thread. unaccepted: the
// connection waits in a listener's backlog, and no process has it yet. closed: its program has closed it. not_now:
// there is no descriptor for the query. unknown: the kernel does not allow it. received: bytes that it has received so
// far.
Owner peer_owner(int fd, const Ends& ends, uid_t& user, uint64_t& received);

} // namespace preload::rendezvous
