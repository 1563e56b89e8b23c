// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Whether writes have to be small because frames get lost. An adapter that misses a frame requests everything from
// there on once; it detects a further loss within the same message by a timeout, which on Soft-RoCE takes two seconds.
// The smaller a message, the rarer that is. A write slower than any queueing delay has met such a timeout, or its
// program made no calls. So writes stay small until some bytes have been written in time, and for more bytes each time.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>

namespace rstream {

class LateWrites {
  public:
    // A write, or several that were posted at once, is complete. From one thread at a time.
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
