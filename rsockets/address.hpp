// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Socket addresses as values: of IPv4, of IPv6, and the IPv4 ones that IPv6 sockets know by another name.
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

    // ::ffff:a.b.c.d as a.b.c.d; every other as it is.
    [[nodiscard]] Address unmapped() const;
    // As a socket of that family tells it.
    [[nodiscard]] Address for_family(int family) const;
    // A connect to the wildcard address means the loopback one.
    [[nodiscard]] Address wildcard_as_loopback() const;

    // As accept(2) and getsockname(2) give addresses: cut to the room, with the whole length.
    void give(sockaddr* to, socklen_t* room) const;

    sockaddr_storage storage{};
    socklen_t length = 0;
};

} // namespace rsockets
