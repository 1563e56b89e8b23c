// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// poll(2) and select(2) on descriptors of any kind. If no connection among them is careful, the kernel handles the
// call.
#pragma once

#include <csignal>
#include <cstdint>

#include <poll.h>
#include <sys/select.h>

namespace preload::wait {

// Notes that the program waits for these, see seen.hpp; returns any_careful().
bool note_all(const pollfd* fds, nfds_t count);
// Whether any of these must be polled in memory.
bool any_careful(const pollfd* fds, nfds_t count);
// ppoll(2). timeout_ns < 0: no timeout.
int poll(pollfd* fds, nfds_t count, int64_t timeout_ns, const sigset_t* mask);
// As select(2), without changing the timeout; -2: none of them is careful, nothing was done.
int select(int count, fd_set* in, fd_set* out, fd_set* except, int64_t timeout_ns, const sigset_t* mask);

} // namespace preload::wait
