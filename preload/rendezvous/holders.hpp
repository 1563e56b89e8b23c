// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Which processes have a socket open. A descriptor that came from another process (exec, SCM_RIGHTS) may still be open
// there, and a process that continues to use it through the kernel would read frames as stream bytes.
#pragma once

#include <cstdint>
#include <optional>

#include <sys/types.h>

namespace preload::rendezvous {

// Whether no other process has it open, as far as /proc shows: processes whose descriptors this one may not see (those
// of other users, for example of a root process that has started this one) do not count. Takes some milliseconds with
// hundreds of processes. False also if it cannot be determined.
bool is_sole_holder(int fd);
// Whether that process has the socket of fd, which is this process's, open. None: it may not be seen.
std::optional<bool> has_socket(pid_t process, int fd);
// Calls body for each socket that other processes have open, as far as /proc shows: more than once for some. False: not
// for all of them.
bool for_each_socket_elsewhere(void* context, void (*body)(void* context, uint64_t inode));

} // namespace preload::rendezvous
