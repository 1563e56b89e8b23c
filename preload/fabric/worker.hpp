// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The worker: a process beside a program that has the librsocket-ofi streams of its connections to other hosts. So the
// program may fork, exec, be killed, and close all its descriptors, and has no thread or descriptor of libfabric. To
// the preload library it behaves like the process at the other end of shared memory.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include <unistd.h>

#include "preload/fabric/link.hpp"
#include "preload/wait/wakeup.hpp"

namespace preload::fabric {

class Worker final : public LinkOwner {
  public:
    Worker();
    Worker(const Worker&) = delete;
    Worker& operator=(const Worker&) = delete;
    ~Worker() override;
    // Runs until the program's service and all connections have ended.
    void run();

    bool watch(int fd, uint64_t token, bool out) override;
    void unwatch(int fd) override;
    void attend(const path::Segment& segment, unsigned end) override;
    void wake(path::Segment& segment, unsigned end, uint64_t id) override;
    void send_control(Control::Kind kind, uint64_t token, Reason why) override;
    OtherDevices& other_devices() override { return other_devices_; }

  private:
    // Of thousands of connections, few are busy: only those are looked at in each round. An idle one names an id of its
    // own as its waiter; when that is woken, all idle ones are looked at once.
    struct Served {
        std::unique_ptr<Link> link;
        uint64_t active_ns = 0; // when it last moved something, or had an event
        bool is_idle = true;    // it is not in busy_
    };
    void make_busy(Served& one);
    void check_idle();
    void let_idle(uint64_t now);
    bool watch_wakeup(wakeup::Id id, uint64_t mark) const;
    [[nodiscard]] bool has_few_busy() const;
    bool spin();
    void sleep() const;
    void forget_ended();
    bool progress_busy();
    bool poll_busy();
    bool arm_busy();
    [[nodiscard]] uint64_t next_deadline() const;
    void on_event(uint64_t mark, uint32_t events, uint64_t now);
    void read_control();
    void serve(const Control& task, int memory, int tcp);
    void read_inbox();
    unsigned read_messages();
    void check_processes();
    void check_leaving(uint64_t now);
    void abandon_shared();
    // The link becomes busy. Null: it has ended.
    Link* find(uint64_t token);
    // A notification for the program's service.
    struct Notice {
        uint64_t service = 0;
        uint64_t token = 0;
        uint64_t id = 0; // 0: attend to the connection; else the waiter to wake
        bool operator==(const Notice&) const = default;
    };
    void queue(const Notice& notice);
    void notify_queued();
    void notify(const Notice& notice);
    void notify_again();

    int epoll_ = -1;
    int inbox_ = -1;
    const uid_t user_ = getuid();
    pid_t program_ = 0; // that has started this worker
    uint64_t name_ = 0;
    uint64_t wakeup_ = 0;      // this process's ids: for busy links,
    uint64_t idle_wakeup_ = 0; // and for idle ones
    bool program_ended_ = false;
    uint64_t now_ = 0; // when events were last asked for
    uint64_t next_check_ = UINT64_MAX;
    uint64_t next_look_ = UINT64_MAX; // at leaving processes, see check_leaving()
    uint64_t next_idle_ = 0;          // when busy links are next checked for being idle
    OtherDevices other_devices_;
    std::vector<Notice> queued_;                 // until this round over the links ends
    uint64_t queued_at_ = 0;                     // the first of them
    std::vector<Notice> unsent_;                 // the service's inbox was full
    std::unordered_map<uint64_t, Served> links_; // by token
    std::vector<Served*> busy_;
};

} // namespace preload::fabric
