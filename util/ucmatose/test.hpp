// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The test as run by both ends: connections, messages and disconnection, in that order.
#pragma once

#include "util/common/waiter.hpp"
#include "util/ucmatose/peer.hpp"

namespace ucmatose {

class Test {
  public:
    explicit Test(const Options& options);
    // Returns the exit status. Throws a Failure if it ends early.
    int run();

  private:
    void run_server();
    void run_client();
    void connect_all();
    void accept_all();
    void send_all();
    void receive_all();
    void migrate();
    void await_disconnections();

    // Sleeps once, then processes what is available.
    void step(util::Clock::time_point& deadline);
    void take_events();
    void take_request(util::Event event);
    void let_pass(util::Clock::duration time);
    void await_all(bool (Peer::*done)() const);
    void check_memory() const;
    Peer& peer_of(const util::Connection* connection);
    void say(const char* line) const;
    void summarize() const;
    [[nodiscard]] util::Bytes hello() const;
    [[nodiscard]] size_t established() const;

    const Options& options_;
    util::Waiter waiter_;
    std::optional<util::Address> local_;
    std::optional<util::Address> remote_;
    std::unique_ptr<util::Backend> backend_;
    std::unique_ptr<util::EventQueue> first_events_;
    std::unique_ptr<util::EventQueue> second_events_; // after a migration
    util::EventQueue* events_ = nullptr;
    std::unique_ptr<util::Listener> listener_;
    std::vector<std::unique_ptr<Peer>> peers_;
    bool ending_ = false; // disconnections are expected
    util::Clock::time_point first_request_{};
    util::Clock::duration connect_time_{};
    util::Clock::duration transfer_time_{};
};

} // namespace ucmatose
