// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Where a program listens or connects to, as the command line names it.
#pragma once

#include <cstdint>
#include <string>

#include <sys/socket.h>

namespace util {

// How an address is written: by default it is a name or an IP address of either kind.
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
    // One that never leaves this machine.
    [[nodiscard]] bool is_loopback() const;
    [[nodiscard]] uint16_t port() const;
    // The host alone, as a number.
    [[nodiscard]] std::string host() const;
    // Host and port.
    [[nodiscard]] std::string text() const;

    friend Address resolve_address(const std::string& option, const std::string& node, uint16_t port,
                                   AddressFormat format, int family);

  private:
    sockaddr_storage storage_{};
    socklen_t length_ = 0;
    std::string gid_; // of a native InfiniBand address, which only librdmacm can complete
    uint16_t gid_port_ = 0;
};

// What a name or number stands for; the first answer counts. family: AF_UNSPEC, or that of the other end. A Failure
// names the option if there is nothing of that name.
Address resolve_address(const std::string& option, const std::string& node, uint16_t port,
                        AddressFormat format = AddressFormat::any, int family = AF_UNSPEC);

} // namespace util
