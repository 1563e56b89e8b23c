// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The kernel's TCP sockets below a core. No core gives their descriptors away: they are looked for among this process's
// descriptors, by their names.
#pragma once

struct sockaddr;

namespace rstream {

// The socket between two addresses; -FI_ENOENT if there is none, or -errno. Lists all descriptors, and asks the
// highest first, so that one which was just made is found soon.
int find_kernel_socket(const sockaddr& local, const sockaddr& peer);

// Whether it is the socket of that name.
bool is_kernel_socket(int fd, const sockaddr& local);

} // namespace rstream
