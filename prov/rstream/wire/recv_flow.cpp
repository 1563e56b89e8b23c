// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/wire/recv_flow.hpp"

#include <algorithm>

namespace rstream::wire {

const char* RecvFlow::on_data(uint64_t length, bool credit_wanted) {
    const uint64_t received = received_.load(std::memory_order_relaxed);
    const uint64_t free_from = std::max(granted_consumed_.load(std::memory_order_relaxed), from_);
    if (received + length - free_from > ring_.capacity()) {
        return "data beyond the receive ring";
    }
    const uint64_t arrived = arrived_.load(std::memory_order_relaxed);
    if (arrived - granted_arrived_.load(std::memory_order_relaxed) >= credits_) {
        return "more data messages than credits";
    }
    arrived_.store(arrived + 1, std::memory_order_release);
    received_.store(received + length, std::memory_order_release);
    if (credit_wanted) {
        wanted_.store(true, std::memory_order_release);
    }
    return nullptr;
}

void RecvFlow::move(size_t ring_size) {
    const uint64_t received = received_.load(std::memory_order_relaxed);
    if (ring_size < ring_.capacity()) {
        from_ = received;
    }
    ring_.move(received, ring_size);
}

bool RecvFlow::credit_due() const {
    const Totals now = totals();
    const uint64_t arrived = now.arrived - granted_arrived_.load(std::memory_order_relaxed);
    const uint64_t granted = granted_consumed_.load(std::memory_order_relaxed);
    if (arrived >= (credits_ + 1) / 2 || (arrived != 0 && wanted_.load(std::memory_order_relaxed)) ||
        now.consumed - granted >= ring_.capacity() / 2) {
        return true;
    }
    // Little was consumed, but the window may block the very bytes that the program waits for.
    return awaited_.load(std::memory_order_acquire) && now.consumed != granted &&
           received() - granted > ring_.capacity() / 2;
}

RecvFlow::Totals RecvFlow::grant(Totals& before) {
    // Cleared before the totals are read: a request that arrives in between stays set, at worst without need.
    wanted_.exchange(false, std::memory_order_acq_rel);
    awaited_.exchange(false, std::memory_order_acq_rel);
    before = {granted_consumed_.load(std::memory_order_relaxed), granted_arrived_.load(std::memory_order_relaxed)};
    const Totals now = totals();
    granted_consumed_.store(now.consumed, std::memory_order_relaxed);
    granted_arrived_.store(now.arrived, std::memory_order_relaxed);
    return now;
}

uint64_t RecvFlow::acknowledge(uint64_t at_most) {
    const bool wanted = wanted_.load(std::memory_order_relaxed) && wanted_.exchange(false, std::memory_order_acq_rel);
    const uint64_t granted = granted_arrived_.load(std::memory_order_relaxed);
    const uint64_t outstanding = arrived_.load(std::memory_order_acquire) - granted;
    const uint64_t count = std::min(outstanding, at_most);
    granted_arrived_.store(granted + count, std::memory_order_relaxed);
    if (wanted && count < outstanding) {
        wanted_.store(true, std::memory_order_release);
    }
    return count;
}

} // namespace rstream::wire
