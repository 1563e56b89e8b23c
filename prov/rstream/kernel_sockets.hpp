// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The kernel's TCP sockets below a core. No core exposes their fds: they are found by address among this process's fds.
#pragma once

struct sockaddr;

namespace rstream {

// The socket between two addresses; -FI_ENOENT if there is none, or -errno. Lists all fds and checks the highest first,
// so that a socket that was just created is found soon.
int find_kernel_socket(const sockaddr& local, const sockaddr& peer);

// Whether `fd` is a socket with that local address.
bool is_kernel_socket(int fd, const sockaddr& local);

} // namespace rstream
