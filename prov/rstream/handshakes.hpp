// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Connections that a core has accepted from the kernel and whose request it has not read yet. libfabric's tcp core
// waits for a request as long as the peer likes, in a read that blocks if only half of it has come. Here each such
// socket is made non-blocking, gets a deadline, and is shut down when that has passed or when there are too many of
// them; the core then reads the end of it and lets go.
//
// No core gives its sockets away. Those of a listener are members of the epoll set behind the descriptor of its event
// queue, and the kernel lists them in /proc/self/fdinfo. A core that has no such set has no handshakes here.
//
// Of libfabric 1.18 and later, they are members of a set in that one, and the core forgets a socket that it has read
// half a request from without blocking. So they are taken out of that set before the core reads them, and put back once
// a whole request is there, or the end.
//
// Not locked: whoever reads the event queue calls these, between two reads.
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

    // `set` is the descriptor of the event queue, which stays the caller's.
    Handshakes(int set, std::chrono::milliseconds limit, size_t max) : limit_(limit), max_(max) {
        sets_.emplace_back(set);
    }

    enum class Found : uint8_t {
        same,
        changed,
        unknown, // it could not be looked at, for want of a descriptor
    };
    // What the core has accepted and let go of since the last time. If there are more than `max` now, the oldest end.
    Found look(Time now);

    void end_late(Time now);
    void end_all();
    // Ends the listening too: nobody is accepted from now on.
    void stop_listening();

    [[nodiscard]] size_t count() const { return handshakes_.size(); }
    [[nodiscard]] bool listening() const { return listener_ >= 0; }
    // Readable when one that was taken out of the core's set is to be looked at; -1 while there has been none.
    [[nodiscard]] int held_fd() const { return held_.get(); }
    // When the first is late; none if there is none.
    [[nodiscard]] std::optional<Time> deadline() const;

  private:
    struct Handshake {
        int fd = -1;
        uint64_t inode = 0; // its number may come to stand for another socket
        Time since;
        bool ended = false;
        int set = -1; // the core's, which it was taken out of
        uint64_t data = 0;
    };
    struct Member {
        Watched watched;
        int set;
    };

    bool list(std::vector<Member>& out);
    void end(Handshake& handshake);
    bool hold(const Member& member, Time now, std::vector<Handshake>& out);
    void give_back(Handshake& handshake);
    // Gives back what has become whole. True: there was some.
    bool look_at_held();

    std::vector<WatchList> sets_; // the queue's, and those in it
    std::chrono::milliseconds limit_;
    size_t max_;
    int listener_ = -1;
    std::vector<int> lasting_;          // the listener, and what the set wakes up by: there for as long as the set
    bool blind_ = false;                // there is no /proc
    base::Descriptor held_;             // an epoll set of those that were taken out of the core's
    std::vector<Handshake> handshakes_; // the oldest first
};

} // namespace rstream
