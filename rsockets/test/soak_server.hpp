// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The side of the soak test that is connected to: threads of one process, on one set.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "rsockets/test/soak_stream.hpp"

namespace soak {

struct Tally {
    std::atomic<uint64_t> finished{0}; // all of it, as it was planned
    std::atomic<uint64_t> reset{0};    // likewise
    std::atomic<uint64_t> killed{0};   // by the end of the peer's process
    std::atomic<uint64_t> bytes{0};
};

class Server {
  public:
    Server();
    [[nodiscard]] uint16_t port() const { return rsocket_test::port_of(from_); }
    [[nodiscard]] size_t open();
    void will_be_killed(uint32_t process);
    // Until a connection of that process is there: one that is killed before it connects proves nothing.
    void await(uint32_t process);
    void stop() { stopping_.store(true); }
    // Until it is stopped, in any number of threads.
    void serve();

    Tally tally;

  private:
    struct Flow {
        explicit Flow(int number) : fd(number), random(static_cast<uint32_t>(number) + 1) {}
        rsocket_test::Number fd;
        Random random;
        Plan plan;
        size_t told = 0; // of the plan
        Sending sending;
        Receiving receiving;
        bool ended = false; // the peer's sending
    };

    void accept_all();
    void watch(int operation, int fd, uint32_t wanted);
    void serve(int fd);
    bool step(Flow& flow);
    bool ended_early(const Flow& flow);

    rsocket_test::Number from_ = rsocket_test::listener();
    rsocket_test::Number set_{repoll_create(0)};
    std::atomic<bool> stopping_{false};
    std::mutex mutex_;
    std::map<int, std::shared_ptr<Flow>> flows_;
    std::set<uint32_t> killed_;
    std::set<uint32_t> heard_; // processes that have connected
    std::condition_variable heard_changed_;
};

} // namespace soak
