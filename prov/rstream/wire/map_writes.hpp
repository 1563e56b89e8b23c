// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Which bytes of the staging ring are not of the stream, but for a map of the peer's, and where in it they go. A short
// queue, in the order of the staging ring: whoever fills it waits until something is posted, as for room in the ring.
//
// Threads: all on the posting side, but `full` may be asked by any.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace rstream::wire {

class MapWrites {
  public:
    static constexpr size_t capacity = 64;

    struct Write {
        uint64_t position = 0; // in the staging ring, of the first byte that is not posted yet
        uint64_t length = 0;
        uint64_t offset = 0; // where that goes
        uint64_t serial = 0; // of the map; another one may have come to the same offset since
        bool apart = false;  // a message of its own, or the beginning of one
    };

    [[nodiscard]] bool full() const {
        return added_.load(std::memory_order_acquire) - taken_.load(std::memory_order_acquire) == capacity;
    }
    [[nodiscard]] bool empty() const { return added_.load() == taken_.load(); }

    // Behind all others; full() must be false. What continues the last one makes that longer, unless
    // it is to go apart.
    void add(const Write& write);

    // Bytes of the stream in front of the next write, from a position on.
    [[nodiscard]] size_t distance(uint64_t position) const {
        return empty() ? std::numeric_limits<size_t>::max() : static_cast<size_t>(front().position - position);
    }
    [[nodiscard]] const Write& front() const { return at(taken_.load(std::memory_order_relaxed)); }

    // So many bytes of the front were posted; or were not after all, and the front is what it was before.
    void advance(uint64_t length);
    void restore(const Write& before, uint64_t length);

    // Drops all that is not posted.
    void clear() { added_.store(taken_.load()); }

  private:
    [[nodiscard]] const Write& at(uint64_t index) const { return writes_[index % capacity]; }
    Write& at(uint64_t index) { return writes_[index % capacity]; }

    std::array<Write, capacity> writes_;
    std::atomic<uint64_t> added_{0};
    std::atomic<uint64_t> taken_{0};
};

} // namespace rstream::wire
