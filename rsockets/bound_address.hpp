// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The local address that a socket was bound to. Until the core holds it, by listening or connecting there, a socket of
// the kernel's does: so the address is free and stays so, an unset port is chosen, and errors are bind(2)'s.
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
    // For the program. 0 or an errno.
    int bind(const KernelOptions& options, const sockaddr* address, socklen_t length);
    // Holds what was ours before, and where accepted connections may live on. 0 or an errno.
    int hold_again(const KernelOptions& options, const Address& address);
    void release() { holder_.reset(); }

    [[nodiscard]] bool held() const { return holder_.open(); }
    [[nodiscard]] const Address& asked() const { return asked_; } // not set: the program did not bind
    // Of the kernel's socket that holds it; any address of the family if there is none.
    [[nodiscard]] Address name(int family) const;

    // Whether something else than `holder_` listens there by a socket of the kernel's: the core, unless it has a port
    // space of its own.
    [[nodiscard]] bool kernel_listens(const KernelOptions& options, int family) const;

  private:
    int hold(const KernelOptions& options, const sockaddr* address, socklen_t length, bool again);

    Address asked_;
    base::Descriptor holder_;
};

} // namespace rsockets
