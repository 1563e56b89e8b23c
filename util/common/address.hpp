// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The address that a program listens on or connects to, as given on the command line.
#pragma once

#include <cstdint>
#include <string>

#include <sys/socket.h>

namespace util {

// The format of an address; by default a name or an IP address of either family.
enum class AddressFormat { any, name, ip, ipv6, gid };

class Address {
  public:
    Address() = default;
    Address(const sockaddr* address, socklen_t length);

    [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
    [[nodiscard]] socklen_t length() const { return length_; }
    [[nodiscard]] int family() const { return storage_.ss_family; }
    [[nodiscard]] bool is_gid() const { return !gid_.empty(); }
    // Any local address.
    [[nodiscard]] bool is_wildcard() const;
    // An address that never leaves this machine.
    [[nodiscard]] bool is_loopback() const;
    [[nodiscard]] uint16_t port() const;
    // The host only, in numeric form.
    [[nodiscard]] std::string host() const;
    // Host and port.
    [[nodiscard]] std::string text() const;

    friend Address resolve_address(const std::string& option, const std::string& node, uint16_t port,
                                   AddressFormat format, int family);

  private:
    sockaddr_storage storage_{};
    socklen_t length_ = 0;
    std::string gid_; // native InfiniBand address, which only librdmacm can complete
    uint16_t gid_port_ = 0;
};

// Resolves a name or a numeric address; the first answer is used. family: AF_UNSPEC, or that of the other end. Throws a
// Failure that names the option if the name does not resolve.
Address resolve_address(const std::string& option, const std::string& node, uint16_t port,
                        AddressFormat format = AddressFormat::any, int family = AF_UNSPEC);

// The family in which a client looks for its server: that of the local address that it uses, if that is numeric and the
// server's is a name, which may have addresses of both families. Else AF_UNSPEC.
int server_family(const std::string& server, const std::string& local);

} // namespace util
