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

} // namespace rstream
