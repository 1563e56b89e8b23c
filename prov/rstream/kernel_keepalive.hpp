// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Keepalive where the core's connection is a TCP connection of the kernel's: the kernel asks, and the peer's kernel
// answers without its program, which no message of ours could achieve. tcp(7): SO_KEEPALIVE, TCP_KEEPIDLE,
// TCP_KEEPINTVL, TCP_KEEPCNT, and TCP_USER_TIMEOUT for the time in which data is on its way.
#pragma once

#include "prov/rstream/keepalive.hpp"

struct sockaddr;

namespace rstream {

// Applies settings to this process's TCP socket between two addresses: no core gives its descriptor away, but a pair of
// addresses names one socket and no other. Times are rounded up to seconds. 0, -FI_ENOENT if there is no such socket,
// or -errno.
int keep_kernel_socket_alive(const sockaddr& local, const sockaddr& peer, const KeepaliveSettings& settings);

} // namespace rstream
