// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Keepalive where the core's connection is a TCP connection of the kernel's: the kernel sends probes, and the peer's
// kernel answers without its program, which no message of ours could achieve. tcp(7): SO_KEEPALIVE, TCP_KEEPIDLE,
// TCP_KEEPINTVL, TCP_KEEPCNT, and TCP_USER_TIMEOUT while data is in flight.
#pragma once

#include <atomic>

#include "prov/rstream/stream/keepalive_timer.hpp"

namespace rstream {

// Applies settings to a TCP socket, in place of `was`, with an `idle` of 0 if keepalive was off. Keepalive times are
// rounded up to seconds. 0 or -errno.
int keep_kernel_socket_alive(int fd, const KeepaliveSettings& was, const KeepaliveSettings& settings);

// TCP_USER_TIMEOUT for the settings, in milliseconds: their `timeout`, or else the time that keepalive takes, if that
// is less than the kernel's own timeout. 0: the kernel's own, a quarter of an hour.
size_t kernel_user_timeout(const KeepaliveSettings& settings);

// The kernel's socket below one stream, if it is known, and the settings on it. `timed_out` is for any thread, the rest
// with the event dispatcher locked.
class KernelKeepalive {
  public:
    // The socket, valid as long as the core has it open; negative if it was not found.
    void attach(int fd) { fd_.store(fd); }
    void detach() { fd_.store(-1); }
    [[nodiscard]] bool attached() const { return fd_.load() >= 0; }

    // 0, or -errno of the socket or of the search for it.
    int apply(const KeepaliveSettings& was, const KeepaliveSettings& settings);

    // Whether the connection ended because the peer did not answer, which no core distinguishes from a reset.
    [[nodiscard]] bool timed_out() const;

  private:
    std::atomic<int> fd_{-1};
    std::atomic<size_t> user_timeout_{0}; // as set in the kernel
};

} // namespace rstream
