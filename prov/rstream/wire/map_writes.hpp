// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Which bytes of the staging ring are out of band, for an iomap of the peer's, and their destination in it. A short
// queue, in the order of the staging ring: when it is full, the sender waits for a post, as for space in the ring.
//
// Threads: the posting side, except `full`, which is for any thread.
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
        uint64_t offset = 0; // destination of that byte
        uint64_t serial = 0; // of the iomap; another one may have the same offset by now
        bool apart = false;  // fenced: it begins a message
    };

    [[nodiscard]] bool full() const {
        return added_.load(std::memory_order_acquire) - taken_.load(std::memory_order_acquire) == capacity;
    }
    [[nodiscard]] bool empty() const { return added_.load() == taken_.load(); }

    // Appends a write; full() must be false. A write that continues the last one extends it, unless it is fenced.
    void add(const Write& write);

    // Bytes of the stream before the next write, from a position on.
    [[nodiscard]] size_t distance(uint64_t position) const {
        return empty() ? std::numeric_limits<size_t>::max() : static_cast<size_t>(front().position - position);
    }
    [[nodiscard]] const Write& front() const { return at(taken_.load(std::memory_order_relaxed)); }

    // `length` bytes of the front were posted; `restore`: they were not after all, and the front is `before` again.
    void advance(uint64_t length);
    void restore(const Write& before, uint64_t length);

    // Drops all writes that are not posted.
    void clear() { added_.store(taken_.load()); }

  private:
    [[nodiscard]] const Write& at(uint64_t index) const { return writes_[index % capacity]; }
    Write& at(uint64_t index) { return writes_[index % capacity]; }

    std::array<Write, capacity> writes_;
    std::atomic<uint64_t> added_{0};
    std::atomic<uint64_t> taken_{0};
};

} // namespace rstream::wire
