// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// When a program that polls continuously does something that costs a system call: once per interval, and only one in
// `polls_a_clock` calls reads the clock. Concurrent threads may count two calls as one, which does no harm.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace rstream {

class PollInterval {
  public:
    static constexpr uint32_t polls_a_clock = 16;
    static constexpr std::chrono::nanoseconds interval = std::chrono::milliseconds(10);

    // `now` reads the clock.
    template <class Now> bool due(const Now& now) {
        const uint32_t polls = polls_.load(std::memory_order_relaxed);
        polls_.store(polls + 1, std::memory_order_relaxed);
        if (polls % polls_a_clock != 0) {
            return false;
        }
        const int64_t time = std::chrono::nanoseconds(now().time_since_epoch()).count();
        if (time - last_.load(std::memory_order_relaxed) < interval.count()) {
            return false;
        }
        last_.store(time, std::memory_order_relaxed);
        return true;
    }

  private:
    std::atomic<uint32_t> polls_{0};
    std::atomic<int64_t> last_{0}; // when it was last due, ns
};

} // namespace rstream
