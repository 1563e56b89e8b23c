// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The option values of one socket: those that the kernel validates, the sizes of its next connection, and those that
// are only stored to be read back. option_table.hpp defines where an option is stored, and whether it is inherited.
//
// Threads: the socket's mutex guards it.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include <sys/socket.h>

#include "rsockets/config.hpp"
#include "rsockets/connection.hpp"
#include "rsockets/kernel_options.hpp"
#include "rsockets/option_table.hpp"

namespace rsockets {

class OptionValues {
  public:
    OptionValues(int family, const Config& defaults);
    // For an accepted socket.
    void inherit(const OptionValues& listener);

    [[nodiscard]] KernelOptions& kernel() { return kernel_; }
    [[nodiscard]] const KernelOptions& kernel() const { return kernel_; }

    // IPV6_V6ONLY as last set: bind and connect make no system call for it.
    [[nodiscard]] bool v6_only() const { return v6_only_; }
    void read_v6_only();

    // For an option at Place::size. 0 or -errno.
    int set_size(const Option& option, const void* value, socklen_t length);
    [[nodiscard]] size_t size(const Option& option) const;
    [[nodiscard]] Sizes sizes() const; // for the next connection

    // RDMA_ROUTE. 0 or -errno.
    int set_route(const void* value, socklen_t length);
    [[nodiscard]] const std::vector<std::byte>& route() const { return route_; }

    // The keepalive settings for a connection. Empty if the program set none: the provider's own apply.
    [[nodiscard]] std::optional<Keepalive> keepalive() const;

  private:
    [[nodiscard]] size_t tcp(int name) const { return static_cast<size_t>(kernel_.value<int>(IPPROTO_TCP, name)); }

    KernelOptions kernel_;
    Config config_;
    std::vector<std::byte> route_;
    bool v6_only_ = false;
};

} // namespace rsockets
