// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The processes of a benchmark. This one has no sockets of its own: it starts the others, waits for their figures, and
// ends them all when one fails or the time is over, so that nothing is left waiting.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "fabtests/programs/path/channel.hpp"

namespace path_bench {

using Clock = std::chrono::steady_clock;
using Figures = std::vector<double>;

// Nanoseconds, the same in all processes.
uint64_t now_ns();

class Team {
  public:
    explicit Team(unsigned limit_seconds);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    // Runs the body in a process of its own.
    void start(const std::string& name, const std::function<Figures()>& body);
    // Waits until all have ended. The figures of each, in the order of their start.
    std::vector<Figures> finish();

  private:
    struct Member {
        std::string name;
        pid_t pid = -1;
        Fd report;
        bool running = true;
        int status = 0;
    };
    [[noreturn]] static void become(const std::function<Figures()>& body, const Fd& report);
    bool wait_until(Clock::time_point deadline, bool stop_at_failure);
    void end_all();
    [[noreturn]] void fail_for_members();

    unsigned limit_;
    Clock::time_point deadline_;
    std::vector<Member> members_;
};

// How two processes of a team tell each other of ports and times.
class Link {
  public:
    Link();
    // Keeps one of its two ends.
    void keep(size_t end);
    void tell(uint64_t value) const;
    [[nodiscard]] uint64_t hear() const;
    [[nodiscard]] int get() const { return ends_[kept_].get(); }

  private:
    Fd ends_[2];
    size_t kept_ = 0;
};

// Memory of all processes of a team.
struct Board {
    std::atomic<unsigned> ready{0};
    std::atomic<bool> over{false};
};

class SharedBoard {
  public:
    SharedBoard();
    ~SharedBoard();
    SharedBoard(const SharedBoard&) = delete;
    SharedBoard& operator=(const SharedBoard&) = delete;
    Board* operator->() const { return board_; }

  private:
    Board* board_;
};

} // namespace path_bench
