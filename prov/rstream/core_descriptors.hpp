// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Descriptors that a core opens for itself. It gives one of them away, which a queue is waited for by: an epoll
// descriptor, of which the kernel tells what it watches (proc(5), fdinfo). So a connection's own are found at a cost
// that does not depend on how many connections there are.
#pragma once

#include <cstdint>
#include <vector>

namespace rstream {

// A member of an epoll set, and what it was added with.
struct Watched {
    int fd = -1;
    uint64_t data = 0;
};
// Adds what an epoll descriptor watches; nothing if it is none. False: the kernel's list cannot be read, errno says
// why.
bool watched_by(int epoll_fd, std::vector<Watched>& out);
bool is_epoll_set(int fd);

// A program that this process executes is not to inherit a queue's descriptors: the one that it is waited for by, what
// that watches, and the other ends of its pairs of sockets, by which a core wakes itself up. libfabric 1.17 makes all
// of them without SOCK_CLOEXEC and the like.
// The TCP socket of the kernel's among these, if there is one; else -1.
int close_queue_on_exec(int wait_fd);

// The number that the next descriptor of this process gets if no other thread is quicker; -1 if there is none left.
// `open_fd` is any descriptor.
int next_descriptor(int open_fd);

bool close_on_exec(int fd);

} // namespace rstream
