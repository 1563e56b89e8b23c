// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Agreement between two services that do not know each other: the first end of the connection listens at an abstract
// unix name made of both addresses and ports; the second one connects to it and passes a memory file. Each end verifies
// that the other process belongs to the user who owns the other end of the TCP connection. Runs on the service's
// thread, and never blocks.
#pragma once

#include <cstdint>

#include "preload/rendezvous/upgrade.hpp"

namespace preload::rendezvous {

class Meeting {
  public:
    // The upgrade outlives the meeting; epoll is the service's.
    Outcome begin(const Upgrade& upgrade, int epoll);
    Outcome on_event(uint64_t now);
    Outcome on_time(uint64_t now);
    void end(); // releases what it holds

    [[nodiscard]] bool in_use() const { return upgrade_ != nullptr; }
    [[nodiscard]] const Upgrade& upgrade() const { return *upgrade_; }
    [[nodiscard]] uint64_t deadline() const { return deadline_; }
    // The second end has sent the memory and waits for the answer.
    [[nodiscard]] bool has_offered() const { return segment_ != nullptr; }

    // After agreement: the socket to the other service, which the caller owns then, and that service's name.
    int take_socket();
    [[nodiscard]] uint64_t peer_service() const { return peer_service_; }

  private:
    Outcome listen_for_peer();
    Outcome connect_to_peer();
    Outcome take_hello();
    Outcome take_answer();
    Outcome accept_stranger(uint64_t now);
    [[nodiscard]] bool is_owner(int socket) const;
    [[nodiscard]] int take_connected() const; // by a process that waits at the listener; -1: none does
    void close_socket();
    void close_listener();
    bool watch(int fd);

    const Upgrade* upgrade_ = nullptr;
    int epoll_ = -1;
    int listener_ = -1; // first end
    int socket_ = -1;   // to the other service
    uint64_t deadline_ = 0;
    uint64_t give_up_ = 0;
    uint64_t pause_ = 0; // second end: until it tries again
    uint64_t token_ = 0;
    uint64_t peer_service_ = 0;
    path::Segment* segment_ = nullptr; // second end: until the first one has answered
    unsigned strangers_ = 0;           // processes of other users that have connected
    Reason why_ = Reason::none;        // one has
};

} // namespace preload::rendezvous
