// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Whether writes are to be small, since frames get lost on the way. An adapter that misses a frame asks for all from
// there on once; of what is lost again within the same message it learns by a timeout, which on Soft-RoCE takes two
// seconds. The smaller a message, the rarer that is. A write that took as long as no queue holds one up has met such a
// timeout, or its program was away. So it is believed for as long as few bytes have gone well since, and longer each
// time.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>

namespace rstream {

class LateWrites {
  public:
    // A write, or several that were made at once, is done. From one thread at a time.
    void done(size_t bytes, std::chrono::nanoseconds took) {
        if (took >= late) {
            clean_ = 0;
            if (!small_.exchange(true, std::memory_order_release)) {
                trial_ = std::min(2 * trial_, max_trial);
            }
        } else if (small_.load(std::memory_order_relaxed) && (clean_ += bytes) >= trial_) {
            small_.store(false, std::memory_order_release);
        }
    }
    [[nodiscard]] bool small() const { return small_.load(std::memory_order_acquire); }

    static constexpr std::chrono::milliseconds late{500};
    static constexpr size_t first_trial = size_t{16} << 20;
    static constexpr size_t max_trial = size_t{1} << 30;

  private:
    std::atomic<bool> small_{false};
    size_t clean_ = 0;
    size_t trial_ = first_trial / 2;
};

} // namespace rstream
