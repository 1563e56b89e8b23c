// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Flow control of control messages. They have credits of their own, separate from data, so that two ends with full
// rings can always return credit to each other. The last credit may be used only by a message that itself acknowledges
// half of the peer's: an end without credits has a peer that must return them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "prov/rstream/wire/atomics.hpp"
#include "prov/rstream/wire/limits.hpp"

namespace rstream::wire {

class ControlFlow {
  public:
    void open(uint64_t peer_credits) { credits_ = peer_credits; }

    [[nodiscard]] bool may_send() const {
        const uint64_t flying = sent_.load(std::memory_order_relaxed) - acknowledged_.load(std::memory_order_acquire);
        return flying + 1 < credits_ || (flying < credits_ && acknowledgement_due());
    }
    // For a message that acknowledges nothing.
    [[nodiscard]] bool may_send_plain() const {
        return sent_.load(std::memory_order_relaxed) - acknowledged_.load(std::memory_order_acquire) + 1 < credits_;
    }
    [[nodiscard]] bool acknowledgement_due() const { return unreported() >= control_credits / 2; }
    [[nodiscard]] uint64_t unreported() const {
        return arrived_.load(std::memory_order_acquire) - reported_.load(std::memory_order_relaxed);
    }

    // Posting side. `post` and `report` precede the call of the core, `unpost` and `unreport` undo them.
    void post() { count_up(sent_, 1, std::memory_order_relaxed); }
    void unpost() { count_down(sent_, 1); }
    uint64_t report(uint64_t at_most) {
        const uint64_t count = std::min(unreported(), at_most);
        count_up(reported_, count, std::memory_order_relaxed);
        return count;
    }
    void unreport(uint64_t count) { count_down(reported_, count); }
    [[nodiscard]] uint64_t reported() const { return reported_.load(std::memory_order_relaxed); }
    [[nodiscard]] uint64_t sent() const { return sent_.load(std::memory_order_relaxed); }
    [[nodiscard]] uint64_t acknowledged() const { return acknowledged_.load(std::memory_order_acquire); }

    // Progress side. Null, or the rule that the peer broke.
    const char* on_control() {
        if (unreported() >= control_credits) {
            return "more control messages than credits";
        }
        count_up(arrived_, 1);
        return nullptr;
    }
    const char* on_acknowledged(uint64_t count) { return on_total(acknowledged() + count); }
    const char* on_total(uint64_t total) {
        if (total < acknowledged() || total > sent()) {
            return "acknowledges control messages that were not sent";
        }
        acknowledged_.store(total, std::memory_order_release);
        return nullptr;
    }

  private:
    uint64_t credits_ = 0;
    std::atomic<uint64_t> sent_{0};
    std::atomic<uint64_t> acknowledged_{0};
    std::atomic<uint64_t> arrived_{0};
    std::atomic<uint64_t> reported_{0};
};

} // namespace rstream::wire
