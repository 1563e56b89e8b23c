// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// One attempt of a connection to agree on a path with its other end. The first end listens at an abstract unix name
// made of the four addresses; the second one connects to it and passes a memory file. Each end makes sure that the
// other process is of the user who owns the other end of the TCP connection. Runs on the service's thread, and never
// blocks.
#pragma once

#include <cstdint>

#include "preload/connection/connection.hpp"
#include "preload/rendezvous/ends.hpp"

namespace preload::rendezvous {

class Meeting {
  public:
    enum class Result : uint8_t { going_on, agreed, failed };

    // The connection is requested; epoll is the service's.
    Result begin(Connection& c, int epoll);
    Result on_event(uint64_t now);
    Result on_time(uint64_t now);
    void end(); // gives up what is open

    [[nodiscard]] bool in_use() const { return connection_ != nullptr; }
    [[nodiscard]] Connection* connection() const { return connection_; }
    [[nodiscard]] uint64_t deadline() const { return deadline_; }
    [[nodiscard]] Reason why() const { return why_; }
    [[nodiscard]] bool for_good() const { return for_good_; }

  private:
    Result fail(Reason why, bool for_good = false);
    Result fail_unanswered();
    Result listen_for_peer();
    Result connect_to_peer();
    Result take_hello();
    Result take_answer();
    Result accept_stranger(uint64_t now);
    bool is_owner(int socket) const;
    bool attach(path::Segment* segment, uint64_t token, unsigned direction);
    bool watch(int fd, int operation);

    Connection* connection_ = nullptr;
    int epoll_ = -1;
    int fd_ = -1;
    Ends ends_;
    uid_t user_ = 0;
    bool syn_counted_ = false;
    int listener_ = -1; // first end
    int socket_ = -1;   // to the other service
    uint64_t deadline_ = 0;
    uint64_t give_up_ = 0;
    uint64_t pause_ = 0; // second end: until it tries again
    uint64_t token_ = 0;
    path::Segment* segment_ = nullptr; // second end: until the first one has answered
    Reason why_ = Reason::none;
    bool for_good_ = false;
};

} // namespace preload::rendezvous
