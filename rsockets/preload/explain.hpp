// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// One line a socket in the file that RSPRELOAD_EXPLAIN names: see rspreload-ofi(7).
#pragma once

#include <sys/socket.h>

#include "rsockets/preload/table.hpp"

namespace preload::explain {

bool wanted();

// A socket of the kernel's that stays so, and why. Only if wanted.
void note_kernel(int fd, Entry::Role role, const char* reason, const sockaddr* peer, socklen_t length);
// A carried socket has its names by now.
void note_names(Entry& entry, int fd, bool carried);
// The number is about to be closed. Writes the record if it is the last of its socket.
void closing(int fd);

} // namespace preload::explain
