// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Connections that a core has accepted from the kernel and whose request it has not read yet. libfabric's tcp core
// waits for a request without a time limit, in a read that blocks if only half of the request has arrived. Here each
// such socket is made non-blocking and gets a deadline. It is shut down when the deadline has passed or when there are
// too many of them; the core then reads EOF and closes it.
//
// No core exposes its sockets. Those of a listener are members of the epoll set behind the fd of its event queue, and
// the kernel lists them in /proc/self/fdinfo. A core without such a set has no handshakes here.
//
// In libfabric 1.18 and later they are members of a set nested in that one, and the core loses track of a socket after
// a non-blocking read of half a request. So they are removed from that set before the core reads them, and added back
// once a complete request, or EOF, has arrived.
//
// Not locked: the thread that reads the event queue calls these methods, between two reads.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/descriptor.hpp"
#include "prov/rstream/core_descriptors.hpp"

namespace rstream {

class Handshakes {
  public:
    using Time = std::chrono::steady_clock::time_point;

    // `set` is the fd of the event queue, which the caller owns.
    Handshakes(int set, std::chrono::milliseconds limit, size_t max) : limit_(limit), max_(max) {
        sets_.emplace_back(set);
    }

    enum class Found : uint8_t {
        same,
        changed,
        unknown, // the sockets could not be listed: out of fds or memory
    };
    // Updates the list with the sockets that the core has accepted and closed since the last call. If there are more
    // than `max`, the oldest are ended.
    Found check(Time now);

    void end_late(Time now);
    void end_all();
    // Shuts down the listening socket: no connection is accepted from here on.
    void stop_listening();

    [[nodiscard]] size_t count() const { return handshakes_.size(); }
    [[nodiscard]] bool listening() const { return listener_ >= 0; }
    // Readable when a socket that was removed from the core's set has to be checked; -1 if the core's sockets are not
    // in a nested set.
    [[nodiscard]] int held_fd() const { return held_.get(); }
    // The earliest deadline; none without handshakes.
    [[nodiscard]] std::optional<Time> deadline() const;

  private:
    struct Handshake {
        int fd = -1;
        uint64_t inode = 0; // the fd may be reused for another socket
        Time since;
        bool ended = false;
        int set = -1; // the core's set that it was removed from; -1: none
        uint64_t data = 0;
    };
    struct Member {
        Watched watched;
        int set;
    };

    bool list(std::vector<Member>& out);
    void end(Handshake& handshake);
    void open_held();
    bool hold(const Member& member, Time now, std::vector<Handshake>& out);
    void give_back(Handshake& handshake);
    // Adds sockets whose request is complete back to the core's set. True if there were any.
    bool check_held();

    std::vector<WatchList> sets_; // the queue's, and those nested in it
    std::chrono::milliseconds limit_;
    size_t max_;
    int listener_ = -1;
    std::vector<int> lasting_;          // the listener, nested sets, the core's wake-up fds: never removed
    bool blind_ = false;                // /proc/self/fdinfo cannot be read
    base::Descriptor held_;             // epoll set of the sockets removed from the core's set
    std::vector<Handshake> handshakes_; // the oldest first
};

} // namespace rstream
