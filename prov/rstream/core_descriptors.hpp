// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// File descriptors that a core opens for itself. A core exposes only the wait fd of a queue: an epoll fd, whose members
// the kernel lists (proc(5), fdinfo). So the fds of one connection are found at a cost that does not depend on the
// number of connections.
#pragma once

#include <cstdint>
#include <vector>

#include "base/descriptor.hpp"

namespace rstream {

// A member of an epoll set, the data it was added with, and its file: an fd may be reused for another file.
struct Watched {
    int fd = -1;
    uint64_t data = 0;
    uint64_t inode = 0; // with the device, in the kernel's encoding; both 0 if not reported
    uint64_t device = 0;
};

// The kernel's list of the members of an epoll fd. The kernel generates it at each read, and the fdinfo file stays
// open, so that a further read is one call. The caller owns the epoll fd, which outlives this object.
class WatchList {
  public:
    explicit WatchList(int epoll_fd) : set_(epoll_fd) {}

    [[nodiscard]] int set() const { return set_; }
    // Adds the members; nothing if the fd is not an epoll set. False: the list cannot be read; errno gives the reason.
    bool read(std::vector<Watched>& out);
    // Whether the set itself was close-on-exec at the last read.
    [[nodiscard]] bool closes_on_exec() const { return closes_on_exec_; }

  private:
    int set_;
    base::Descriptor file_;
    bool closes_on_exec_ = false;
};

bool watched_by(int epoll_fd, std::vector<Watched>& out); // as WatchList::read, once
bool is_epoll_set(int fd);
// The protocol of a socket; -1 if the fd is not a socket.
int socket_protocol(int fd);

// Sets FD_CLOEXEC on the fds of a queue, which a program that this process executes must not inherit: the wait fd, the
// members of that set, and the other ends of the socket pairs by which a core wakes itself. libfabric 1.17 creates all
// of them without SOCK_CLOEXEC and the like. Returns the kernel TCP socket among these fds, or -1.
int close_queue_on_exec(int wait_fd);

// The fd that the next open in this process returns unless another thread opens one first; -1 if no fd is free.
// `open_fd` is any open fd.
int next_descriptor(int open_fd);

void close_on_exec(int fd); // an open one, with which that cannot fail

} // namespace rstream
