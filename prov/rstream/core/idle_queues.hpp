// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Event queues of closed endpoints, for the next ones. On verbs, a queue is a channel to the kernel's connection
// manager, an epoll set and a pair of sockets: some twenty-five system calls to make and close one, a quarter of what a
// connection takes.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "prov/rstream/fid.hpp"

namespace rstream {

class IdleQueues {
  public:
    // Each holds up to four descriptors.
    static constexpr size_t limit = 4;

    struct Queue {
        Owned<fid_eq> queue;
        int fd = -1; // to wait on
    };

    // An empty queue, or none.
    [[nodiscard]] Queue take();
    // Of an endpoint that is closed. Events that are left are dropped. A queue that could still be readable, or is one
    // too many, is closed.
    void give(fid_fabric* fabric, Queue&& queue);

  private:
    std::mutex mutex_; // a leaf
    std::vector<Queue> queues_;
};

} // namespace rstream
