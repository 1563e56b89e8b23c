// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Keepalive where the core's connection is a TCP connection of the kernel's: the kernel asks, and the peer's kernel
// answers without its program, which no message of ours could achieve. tcp(7): SO_KEEPALIVE, TCP_KEEPIDLE,
// TCP_KEEPINTVL, TCP_KEEPCNT, and TCP_USER_TIMEOUT for the time in which data is on its way.
#pragma once

#include "prov/rstream/keepalive.hpp"

namespace rstream {

// Applies settings to a TCP socket, which `was` has been applied to: nothing if its last `idle` is none. Times are
// rounded up to seconds. 0 or -errno.
int keep_kernel_socket_alive(int fd, const KeepaliveSettings& was, const KeepaliveSettings& settings);

// What TCP_USER_TIMEOUT becomes by them: no more than the kernel's own way takes. 0: that way, a quarter of an hour.
size_t kernel_user_timeout(const KeepaliveSettings& settings);

// Whether a connection that is gone ended for want of answers, which no core tells from a reset.
bool kernel_socket_timed_out(int fd, size_t user_timeout);

} // namespace rstream
