// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Upgrades of connections to other hosts: the worker connects to the far end's worker, and then the connection gets its
// own segment, in which the worker plays the far end. On the service's thread.
#pragma once

#include <array>
#include <cstdint>

#include "preload/fabric/control.hpp"
#include "preload/fabric/device_addresses.hpp"
#include "preload/rendezvous/upgrade.hpp"

namespace preload::fabric {

class Upgrades {
  public:
    explicit Upgrades(int epoll) : epoll_(epoll) {}

    // False: the table is full; try again later.
    bool begin(const rendezvous::Upgrade& upgrade);
    void on_worker(); // it has sent a message, or has ended
    void on_time(uint64_t now);
    // When a worker that is not ready is given up, or a request that it does not answer: others queue behind them.
    [[nodiscard]] uint64_t deadline() const { return worker_ < 0 ? UINT64_MAX : ready_ ? answers_due_ : ready_by_; }
    // Connections were closed.
    void on_closed();

  private:
    struct Pending {
        rendezvous::Upgrade upgrade;
        uint64_t token = 0; // 0: not in use
        path::Segment* segment = nullptr;
        int memory = -1;        // the segment's, until the worker has it
        uint64_t answer_by = 0; // from then on
        unsigned direction = 0;
    };

    bool ensure_worker();
    // Sends it to the worker. Not before the worker is ready: if the program ends meanwhile, the worker's descriptor of
    // the connection would delay what the kernel does at the last close.
    void give(Pending& pending);
    void on_message(const Control& message);
    void conclude(Pending& pending, const rendezvous::Outcome& outcome);
    void drop(Pending& pending);
    void worker_ended();
    void end_overdue(uint64_t now);

    const int epoll_;
    int worker_ = -1;
    bool ready_ = false;
    uint64_t ready_by_ = UINT64_MAX;
    RetryPause pause_;  // no worker could be started, or it ended before it was ready
    bool hung_ = false; // one was never ready
    std::array<Pending, 256> pending_;
    uint64_t answers_due_ = UINT64_MAX; // the first answer_by, or earlier
    DeviceAddresses addresses_;
};

} // namespace preload::fabric
