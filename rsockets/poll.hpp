// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// poll(2) and select(2) over a mix of our sockets, sets of repoll_create(3) and any other descriptors. A thread polls
// all of them, then sleeps in the kernel's poll on the other descriptors, on those of the provider behind ours, and on
// its own eventfd for all further notifications.
#pragma once

#include <csignal>
#include <optional>

#include <poll.h>
#include <sys/select.h>

#include "rsockets/wait_queue.hpp"

namespace rsockets {

// The number of entries with events, 0 once the deadline has passed, or -errno.
int poll(pollfd* fds, nfds_t count, const Deadline& deadline, const sigset_t* mask);

int select(int count, fd_set* read, fd_set* write, fd_set* except, const Deadline& deadline, const sigset_t* mask);

} // namespace rsockets
