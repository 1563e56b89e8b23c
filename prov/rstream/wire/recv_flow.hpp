// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The receiving half of one direction: the bytes that the peer wrote into the receive ring, those that the program
// consumed, and when the peer gets credit. Credit for bytes is returned when half the ring is consumed, for messages
// when half the credits are used up, and for both at once when the peer reports that it holds data back, or when the
// program waits for more than is readable. Small data in the opposite direction acknowledges messages too: a request
// and its reply need nothing else.
//
// Threads: `on_data` and `move` on the progress side, `consume` and `settle` on the reading side, `grant` and `revoke`
// on the posting side; one thread at a time on each.
#pragma once

#include <atomic>
#include <cstdint>

#include "prov/rstream/wire/atomics.hpp"
#include "prov/rstream/wire/ring.hpp"

namespace rstream::wire {

class RecvFlow {
  public:
    RecvFlow(size_t ring_size, uint64_t credits) : ring_(ring_size), credits_(credits) {}

    // Counts a data message of `length` bytes. Null, or the rule that the peer broke.
    const char* on_data(uint64_t length, bool credit_wanted);

    // From here on, data is in a ring of that size.
    void move(size_t ring_size);
    // True, once, when nothing is left in the old ring.
    bool settle() { return ring_.settle(consumed_.load(std::memory_order_relaxed)); }
    [[nodiscard]] bool moving() const { return ring_.moving(); }
    [[nodiscard]] size_t capacity() const { return ring_.capacity(); }

    [[nodiscard]] size_t readable() const {
        return received_.load(std::memory_order_acquire) - consumed_.load(std::memory_order_relaxed);
    }
    // The readable bytes from `skip` on that are contiguous, at most `length`.
    [[nodiscard]] Extent peek(size_t length, size_t skip = 0) const {
        const size_t there = readable();
        return ring_.extent(consumed_.load(std::memory_order_relaxed) + skip,
                            std::min(length, there - std::min(skip, there)));
    }
    void consume(size_t length) { count_up(consumed_, length); }

    // The program has seen the readable bytes, and waits for more.
    void await_more() { awaited_.store(true, std::memory_order_release); }

    struct Totals {
        uint64_t consumed = 0;
        uint64_t arrived = 0;
    };
    [[nodiscard]] bool credit_due() const;
    [[nodiscard]] Totals totals() const {
        return {consumed_.load(std::memory_order_acquire), arrived_.load(std::memory_order_acquire)};
    }
    // The totals to report to the peer now; they count as reported before they are sent. `before`: for `revoke`, if
    // they could not be sent.
    Totals grant(Totals& before);
    void revoke(const Totals& before) {
        granted_consumed_.store(before.consumed, std::memory_order_relaxed);
        granted_arrived_.store(before.arrived, std::memory_order_relaxed);
        wanted_.store(true, std::memory_order_relaxed);
    }

    // As `grant`, for at most so many arrivals and no bytes: a message that is sent anyway reports them. How many.
    uint64_t acknowledge(uint64_t at_most);
    void unacknowledge(uint64_t count) {
        count_down(granted_arrived_, count);
        wanted_.store(true, std::memory_order_relaxed);
    }

    [[nodiscard]] uint64_t received() const { return received_.load(std::memory_order_acquire); }

  private:
    MovingRing ring_;
    uint64_t credits_;
    uint64_t from_ = 0; // as SendFlow's peer_from_; progress side
    std::atomic<uint64_t> received_{0};
    std::atomic<uint64_t> arrived_{0};
    std::atomic<uint64_t> consumed_{0};
    std::atomic<uint64_t> granted_consumed_{0};
    std::atomic<uint64_t> granted_arrived_{0};
    std::atomic<bool> wanted_{false};
    std::atomic<bool> awaited_{false};
};

} // namespace rstream::wire
