// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The local address that a socket is bound to. A kernel socket reserves it until the core listens or connects there: so
// the address is free and stays so, an unset port is chosen, and errors are those of bind(2).
//
// Threads: the socket's mutex guards it.
#pragma once

#include <sys/socket.h>

#include "base/descriptor.hpp"
#include "rsockets/address.hpp"
#include "rsockets/kernel_options.hpp"

namespace rsockets {

class BoundAddress {
  public:
    // bind(2) of the program. 0 or an errno.
    int bind(const KernelOptions& options, const sockaddr* address, socklen_t length);
    // Reserves an address again that was ours before, and that accepted connections may still use. 0 or an errno:
    // without a reservation, the call that needs the address may fail.
    int hold_again(const KernelOptions& options, const Address& address);
    void release() { holder_.reset(); }

    [[nodiscard]] bool held() const { return holder_.open(); }
    [[nodiscard]] const Address& asked() const { return asked_; } // not set: the program did not bind
    // The address of the kernel socket that reserves it; the wildcard address if there is none.
    [[nodiscard]] Address name(int family) const;

    // Whether a kernel socket other than `holder_` listens there: the core's, unless the core has its own port space.
    [[nodiscard]] bool kernel_listens(const KernelOptions& options, int family) const;

  private:
    int hold(const KernelOptions& options, const sockaddr* address, socklen_t length, bool again);

    Address asked_;
    base::Descriptor holder_;
};

} // namespace rsockets
