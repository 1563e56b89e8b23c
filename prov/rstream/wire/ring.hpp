// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Positions in a stream are 64-bit counters that never wrap; a ring converts them to offsets in a buffer. A resize
// moves a ring to a larger buffer at a position: bytes before that stay in the old buffer until they are consumed.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace rstream::wire {

struct Extent {
    size_t offset = 0;
    size_t length = 0;
    bool moved = false; // it is in the new buffer during a resize
};

class Ring {
  public:
    explicit Ring(size_t capacity = 1) : capacity_(capacity) {}

    [[nodiscard]] size_t capacity() const { return capacity_; }

    // The longest prefix of [position, position + length) that is contiguous in the buffer.
    [[nodiscard]] Extent extent(uint64_t position, uint64_t length) const {
        const size_t offset = position % capacity_;
        return {offset, static_cast<size_t>(std::min<uint64_t>(length, capacity_ - offset))};
    }

  private:
    size_t capacity_;
};

// Threads: one thread at a time calls `move`; one thread at a time, possibly another, calls the rest; `capacity` is for
// any thread. A `settle` must happen before the next `move`.
class MovingRing {
  public:
    explicit MovingRing(size_t capacity = 1) : ring_(capacity), capacity_(capacity) {}

    // From `move` on, that of the new buffer.
    [[nodiscard]] size_t capacity() const { return capacity_.load(std::memory_order_acquire); }

    // As Ring::extent; an extent is in one buffer.
    [[nodiscard]] Extent extent(uint64_t position, uint64_t length) const {
        const uint64_t split = split_.load(std::memory_order_acquire);
        if (position < split) {
            return ring_.extent(position, std::min(length, split - position));
        }
        Extent extent = next_.extent(position, length);
        extent.moved = true;
        return extent;
    }

    // Bytes from `position` on are in a buffer of that size. Not during a resize.
    void move(uint64_t position, size_t capacity) {
        next_ = Ring(capacity);
        capacity_.store(capacity, std::memory_order_release);
        split_.store(position, std::memory_order_release);
    }
    [[nodiscard]] bool moving() const { return split_.load(std::memory_order_acquire) != never; }

    // True if the resize is complete, as no byte from `position` on is in the old buffer: only the new one is in use.
    bool settle(uint64_t position) {
        if (position < split_.load(std::memory_order_acquire)) {
            return false;
        }
        ring_ = next_;
        split_.store(never, std::memory_order_release);
        return true;
    }

    // Bytes from `position` on were dropped: their successors go to the new buffer.
    void cut(uint64_t position) {
        if (moving()) {
            split_.store(std::min(position, split_.load(std::memory_order_relaxed)), std::memory_order_release);
        }
    }

  private:
    static constexpr uint64_t never = ~uint64_t{0};

    Ring ring_;
    Ring next_;
    std::atomic<uint64_t> split_{never};
    std::atomic<size_t> capacity_;
};

} // namespace rstream::wire
