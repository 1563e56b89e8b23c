// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Descriptors that a core opens for itself. It gives one of them away, which a queue is waited for by: an epoll
// descriptor, of which the kernel tells what it watches (proc(5), fdinfo). So a connection's own are found at a cost
// that does not depend on how many connections there are.
#pragma once

#include <cstdint>
#include <vector>

#include "base/descriptor.hpp"

namespace rstream {

// A member of an epoll set, what it was added with, and which file it is: a number may come to stand for another one.
struct Watched {
    int fd = -1;
    uint64_t data = 0;
    uint64_t inode = 0; // with the device, as the kernel has it; both 0 where it does not say
    uint64_t device = 0;
};

// The kernel's list of what an epoll descriptor watches. It is made anew at each read, and the file behind it stays
// open, so that a further read is one call. The descriptor is the caller's, and outlives this.
class WatchList {
  public:
    explicit WatchList(int epoll_fd) : set_(epoll_fd) {}

    [[nodiscard]] int set() const { return set_; }
    // Adds the members; nothing if the descriptor is no epoll set. False: the list cannot be read, errno says why.
    bool read(std::vector<Watched>& out);
    // Whether the set itself is closed on exec, when it was last read.
    [[nodiscard]] bool closes_on_exec() const { return closes_on_exec_; }

  private:
    int set_;
    base::Descriptor file_;
    bool closes_on_exec_ = false;
};

bool watched_by(int epoll_fd, std::vector<Watched>& out); // the same, once
bool is_epoll_set(int fd);
// The protocol of a socket; -1 of anything else.
int socket_protocol(int fd);

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
