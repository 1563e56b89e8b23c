// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Agrees with the peers of connections on memory that both map. There are two ways: a channel, if the two services know
// each other, and a meeting, if they do not. If the peer does not answer on the channel, a meeting begins after a
// while, since another process may have the connection; the way that succeeds first is used.
//
// On a channel, each end sends `ready`. When the second end has received it, it makes an offer:
//
//     first                          second
//       | -- ready -------------------> |    not ready yet: it records the sender
//       | <------------------- ready -- |    ready now: it replies to that sender, and the first end answers likewise
//       | -- ready -------------------> |
//       | <----------- offer, memory -- |
//       | -- taken -------------------> |    or declined
//
// On the service's thread.
#pragma once

#include <array>
#include <cstdint>

#include "preload/fabric/upgrades.hpp"
#include "preload/rendezvous/channel.hpp"
#include "preload/rendezvous/meeting.hpp"
#include "preload/rendezvous/pending.hpp"

namespace preload::rendezvous {

class Agreements {
  public:
    explicit Agreements(int epoll) : epoll_(epoll), channels_(epoll), fabric_(epoll) {}

    // False: the table is full; try again later.
    bool begin(Connection& c, uint64_t now);
    // Events of the epoll set.
    void on_channel(uint64_t event, uint32_t events, uint64_t now);
    void on_meeting(Meeting& meeting, uint64_t now);
    void on_worker() { fabric_.on_worker(); }
    void on_time(uint64_t now); // at the deadline
    [[nodiscard]] uint64_t deadline() const { return deadline_; }
    void close(); // the sockets to other services; nothing is agreed on any more
    // One of the connections was closed.
    void note_closed() {
        any_closed_ = true;
        deadline_ = 0;
    }

  private:
    static constexpr size_t max_meetings = 64;

    void conclude(Pending& pending, const Outcome& outcome);
    void check(Pending& pending, uint64_t now);
    void at(Pending& pending, uint64_t due);

    void await_meeting(Pending& pending);
    void begin_meetings();
    void end_meeting(Pending& pending);
    void on_outcome(Pending& pending, const Outcome& outcome);
    void keep_socket(Meeting& meeting);

    void send_ready(Pending& pending, uint64_t now);
    bool send_ready_on(Pending& pending, Channel& channel);
    void make_offer(Pending& pending, uint64_t now);
    void withdraw_offer(Pending& pending);
    void wait_for_space(Channel& channel);
    void send_waiting(Channel& channel, uint64_t now);
    void close_channel(Channel& channel);
    void on_proposal(Channel& channel, const Proposal& proposal, int memory, uint64_t now);
    void on_ready(Channel& channel, const Ends& ends, uint64_t now);
    bool on_offer(Channel& channel, const Proposal& proposal, int memory);
    void on_answer(Channel& channel, const Proposal& proposal, uint64_t now);

    const int epoll_;
    uint64_t deadline_ = UINT64_MAX;
    bool any_closed_ = false;
    size_t free_meetings_ = max_meetings;
    AwaitingList awaiting_;
    Channels channels_;
    std::array<Meeting, max_meetings> meetings_;
    PendingTable pending_;
    fabric::Upgrades fabric_;
};

// Ends the service's work on the connection: it is upgraded, or stays with the kernel for now.
void conclude(Connection& c, const Outcome& outcome, int epoll);

} // namespace preload::rendezvous
