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
#include <vector>

#include <unistd.h>

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
    unsigned read_messages();
    void look_for_the_dead(uint64_t now);
    Link* find(uint64_t token);
    // What the program's service is to be told.
    struct Notice {
        uint64_t service = 0;
        uint64_t token = 0;
        uint64_t id = 0; // 0: it is to look at the connection; else the sleeper that it is to wake
        bool operator==(const Notice&) const = default;
    };
    void notify(const Notice& notice);
    void notify_again();

    int epoll_ = -1;
    int inbox_ = -1;
    const uid_t user_ = getuid();
    uint64_t name_ = 0;
    uint64_t wakeup_ = 0; // the own id
    bool program_ended_ = false;
    uint64_t next_look_ = UINT64_MAX;
    std::vector<Notice> unsent_;                                // the service's inbox was full
    std::unordered_map<uint64_t, std::unique_ptr<Link>> links_; // by token
};

} // namespace preload::fabric
