// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Sleeps until one of several objects is ready, the deadline has passed, or the user interrupts.
#pragma once

#include <span>

#include "util/common/backend.hpp"

namespace util {

// No limit.
constexpr Clock::time_point forever = Clock::time_point::max();

// Only one instance at a time: it handles SIGINT and SIGTERM. The first is reported, a second ends the program.
class Waiter {
  public:
    enum class Outcome { ready, timed_out, interrupted };

    Waiter();
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;
    ~Waiter();

    // An interruption is reported once; interrupted() stays true.
    Outcome wait(std::span<Waitable* const> things, Clock::time_point deadline);
    [[nodiscard]] bool interrupted() const { return interrupted_; }

  private:
    bool interrupted_ = false;
    std::vector<pollfd> descriptors_;
};

} // namespace util
