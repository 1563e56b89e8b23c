// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The options of one socket as they are set: those that the kernel knows, the sizes of its next connection, and what is
// kept for nothing but to be read again. Which option is where, and which an accepted socket has from its listener,
// says option_table.hpp.
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

    // IPV6_V6ONLY as it was when it was last set: bind and connect ask no kernel.
    [[nodiscard]] bool v6_only() const { return v6_only_; }
    void read_v6_only();

    // Of an option at Place::size. 0 or -errno.
    int set_size(const Option& option, const void* value, socklen_t length);
    [[nodiscard]] size_t size(const Option& option) const;
    [[nodiscard]] Sizes sizes() const; // for the next connection

    // RDMA_ROUTE. 0 or -errno.
    int set_route(const void* value, socklen_t length);
    [[nodiscard]] const std::vector<std::byte>& route() const { return route_; }

    // What the options of keepalive ask of a connection. Nothing if the program said nothing: what the provider was set
    // to holds then.
    [[nodiscard]] std::optional<Keepalive> keepalive() const;

  private:
    [[nodiscard]] size_t tcp(int name) const { return static_cast<size_t>(kernel_.value<int>(IPPROTO_TCP, name)); }

    KernelOptions kernel_;
    Config config_;
    std::vector<std::byte> route_;
    bool v6_only_ = false;
};

} // namespace rsockets
