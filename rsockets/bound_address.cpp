// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/bound_address.hpp"

#include <cerrno>
#include <utility>

#include <netinet/in.h>

namespace rsockets {

namespace {

// Others may bind to its address. That is a flag of the socket only, and cannot fail.
void share_address(int fd) {
    const int on = 1;
    ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
}

} // namespace

int BoundAddress::bind(const KernelOptions& options, const sockaddr* address, socklen_t length) {
    const int error = hold(options, address, length, false);
    asked_ = error == 0 ? Address(address, length) : Address();
    return error;
}

int BoundAddress::hold_again(const KernelOptions& options, const Address& address) {
    return hold(options, address.get(), address.length, true);
}

int BoundAddress::hold(const KernelOptions& options, const sockaddr* address, socklen_t length, bool again) {
    base::Descriptor made = options.socket({{SOL_SOCKET, SO_REUSEADDR},
                                            {SOL_SOCKET, SO_REUSEPORT},
                                            {IPPROTO_IPV6, IPV6_V6ONLY},
                                            {IPPROTO_IP, IP_FREEBIND}});
    if (made.open() && again) {
        share_address(made.get());
    }
    if (!made.open() || ::bind(made.get(), address, length) != 0) {
        return errno;
    }
    // The core must be able to bind to the same address later, to listen or connect.
    share_address(made.get());
    holder_ = std::move(made);
    return 0;
}

Address BoundAddress::name(int family) const {
    Address address;
    address.length = sizeof(address.storage);
    if (!held() || getsockname(holder_.get(), address.get(), &address.length) != 0) {
        return Address::any(family);
    }
    return address;
}

bool BoundAddress::kernel_listens(const KernelOptions& options, int family) const {
    const Address at = name(family);
    const base::Descriptor probe = options.socket({{IPPROTO_IPV6, IPV6_V6ONLY}});
    const int on = 1;
    return held() && probe.open() && setsockopt(probe.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
           ::bind(probe.get(), at.get(), at.length) != 0;
}

} // namespace rsockets
