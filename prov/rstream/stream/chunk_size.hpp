// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Max bytes of one write: at least two writes are in flight at once, and four where the buffers are large enough for
// large ones. Where frames get lost, writes are small: see late_writes.hpp.
//
// Threads: the progress side reports completions, the rest is for the posting side.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>

#include "prov/rstream/stream/late_writes.hpp"

namespace rstream {

class ChunkSize {
  public:
    // A larger write gains nothing, and delays the peer's first byte.
    static constexpr size_t max = size_t{256} << 10;
    // Below this size the cost of a message outweighs the gain of a third and a fourth in flight.
    static constexpr size_t small = size_t{64} << 10;
    static constexpr size_t lossy = size_t{16} << 10;

    // `max_message`: the core's limit.
    explicit ChunkSize(size_t max_message) : max_message_(max_message) {}

    // 0 before the first `fit`.
    [[nodiscard]] size_t get() const { return size_; }
    // Adapts to the sizes of the two rings.
    size_t fit(size_t peer_ring, size_t staging) {
        const size_t buffer = std::min(peer_ring, staging);
        size_ = std::min({max_message_, max, std::max(buffer / 4, std::min(buffer / 2, small))});
        if (lossy_) {
            size_ = std::min(size_, lossy);
        }
        return size_;
    }

    void on_completed(size_t bytes, std::chrono::nanoseconds took) { late_writes_.done(bytes, took); }
    // True if the estimate of frame loss has changed; the next `fit` uses it.
    bool update_loss() {
        if (late_writes_.small() == lossy_) {
            return false;
        }
        lossy_ = !lossy_;
        return true;
    }
    [[nodiscard]] bool loses_frames() const { return lossy_; }

  private:
    const size_t max_message_;
    size_t size_ = 0;
    bool lossy_ = false; // as of the last update
    LateWrites late_writes_;
};

} // namespace rstream
