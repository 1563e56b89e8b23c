// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Socket addresses as values: IPv4, IPv6, and IPv4-mapped IPv6.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

namespace rsockets {

struct Address {
    Address() = default;
    Address(const void* data, socklen_t size);
    static Address any(int family);

    [[nodiscard]] int family() const { return storage.ss_family; }
    [[nodiscard]] bool set() const { return length != 0; }
    [[nodiscard]] uint16_t port() const; // in host order
    void set_port(uint16_t port);
    [[nodiscard]] bool wildcard() const;
    [[nodiscard]] bool v4_mapped() const;
    [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
    [[nodiscard]] sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }

    // Without what a caller may have passed besides: a flow, a scope that the address does not need, more length.
    [[nodiscard]] Address bare() const;
    // ::ffff:a.b.c.d as a.b.c.d; any other unchanged.
    [[nodiscard]] Address unmapped() const;
    // As a socket of that family reports it.
    [[nodiscard]] Address for_family(int family) const;
    // connect(2) to the wildcard address means the loopback address.
    [[nodiscard]] Address wildcard_as_loopback() const;

    // As accept(2) and getsockname(2) store addresses: truncated to `capacity`, which receives the full length.
    void give(sockaddr* to, socklen_t* capacity) const;

    sockaddr_storage storage{};
    socklen_t length = 0;
};

} // namespace rsockets
