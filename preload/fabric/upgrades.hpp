// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Upgrades of connections to other hosts: the worker is told to find the far end's, and when it has, the connection
// gets a segment of its own, in which the worker plays the far end. On the service's thread.
#pragma once

#include <array>
#include <cstdint>

#include "preload/fabric/control.hpp"
#include "preload/rendezvous/upgrade.hpp"

namespace preload::fabric {

class Upgrades {
  public:
    explicit Upgrades(int epoll) : epoll_(epoll) {}

    // False: there is no room, and it is to be tried again later.
    bool begin(const rendezvous::Upgrade& upgrade);
    void on_worker(); // it has said something, or has ended
    // Connections were closed.
    void on_closed();

  private:
    struct Pending {
        rendezvous::Upgrade upgrade;
        uint64_t token = 0; // 0: not in use
        path::Segment* segment = nullptr;
        unsigned direction = 0;
    };

    bool ensure_worker();
    void on_message(const Control& message);
    void conclude(Pending& pending, const rendezvous::Outcome& outcome);
    void drop(Pending& pending);
    void worker_ended();

    const int epoll_;
    int worker_ = -1;
    bool impossible_ = false;
    std::array<Pending, 256> pending_;
};

} // namespace preload::fabric
