// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The worker: a process beside a program, which has the streams of librsocket-ofi for its connections to other hosts.
// So a program may fork, execute another one, be killed, and close all its descriptors, and knows of no thread and no
// descriptor of libfabric's. To the program's library it looks like the process at the other end of shared memory.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "preload/fabric/link.hpp"

namespace preload::fabric {

class Worker final : public LinkOwner {
  public:
    Worker();
    Worker(const Worker&) = delete;
    Worker& operator=(const Worker&) = delete;
    ~Worker() override;
    // Until the program's service has ended, and all connections.
    void run();

    bool watch(int fd, uint64_t token, bool out) override;
    void attend(const path::Segment& segment, unsigned end) override;
    void wake(path::Segment& segment, unsigned end, uint64_t id) override;
    void tell(Control::Kind kind, uint64_t token, Reason why) override;

  private:
    bool pump_all();
    bool arm_all();
    [[nodiscard]] uint64_t next_deadline() const;
    void on_event(uint64_t mark, uint32_t events, uint64_t now);
    void read_control();
    void serve(const Control& task, int memory, int tcp);
    void read_inbox();
    void look_for_the_dead(uint64_t now);
    Link* find(uint64_t token);

    int epoll_ = -1;
    int inbox_ = -1;
    uint64_t name_ = 0;
    uint64_t wakeup_ = 0; // the own id
    bool program_ended_ = false;
    uint64_t next_look_ = UINT64_MAX;
    std::unordered_map<uint64_t, std::unique_ptr<Link>> links_; // by token
};

} // namespace preload::fabric
