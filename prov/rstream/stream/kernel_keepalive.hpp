// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Keepalive where the core's connection is a TCP connection of the kernel's: the kernel asks, and the peer's kernel
// answers without its program, which no message of ours could achieve. tcp(7): SO_KEEPALIVE, TCP_KEEPIDLE,
// TCP_KEEPINTVL, TCP_KEEPCNT, and TCP_USER_TIMEOUT for the time in which data is on its way.
#pragma once

#include <atomic>

#include "prov/rstream/stream/keepalive_timer.hpp"

namespace rstream {

// Applies settings to a TCP socket, which `was` has been applied to: nothing if its last `idle` is none. Times are
// rounded up to seconds. 0 or -errno.
int keep_kernel_socket_alive(int fd, const KeepaliveSettings& was, const KeepaliveSettings& settings);

// What TCP_USER_TIMEOUT becomes by them: no more than the kernel's own way takes. 0: that way, a quarter of an hour.
size_t kernel_user_timeout(const KeepaliveSettings& settings);

// The kernel's socket below one stream, where it is known, and what was set on it. `timed_out` from any thread, the
// rest with the event dispatcher locked.
class KernelKeepalive {
  public:
    // The socket, as long as the core has it open; negative if it was not found.
    void attach(int fd) { fd_.store(fd); }
    void detach() { fd_.store(-1); }
    [[nodiscard]] bool attached() const { return fd_.load() >= 0; }

    // 0, or -errno of the socket or of the search for it.
    int apply(const KeepaliveSettings& was, const KeepaliveSettings& settings);

    // Whether the connection ended for want of answers, which no core tells from a reset.
    [[nodiscard]] bool timed_out() const;

  private:
    std::atomic<int> fd_{-1};
    std::atomic<size_t> user_timeout_{0}; // as the kernel has it
};

} // namespace rstream
