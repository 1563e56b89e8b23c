// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What the worker has reported of this host's addresses: whether a device of the cores has them. Devices come and go,
// so an address without one is tried again after some time. And when to try again what has failed.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "preload/rendezvous/ends.hpp"

namespace preload::fabric {

inline constexpr uint64_t second_ns = 1000000000;

class DeviceAddresses {
  public:
    static constexpr uint64_t asked_again_after = 10 * second_ns;

    // Not asked for a while: the last answer was that no device has it. Ports do not matter.
    [[nodiscard]] bool has_no_device(const rendezvous::Address& address, uint64_t now) const {
        const Entry* entry = find(address);
        return entry != nullptr && now < entry->again_at;
    }
    // A device had it: its connections may expect that it comes back.
    [[nodiscard]] bool had_device(const rendezvous::Address& address) const {
        const Entry* entry = find(address);
        return entry != nullptr && entry->served;
    }
    void note_device(const rendezvous::Address& address) {
        Entry& entry = found_or_made(address);
        entry.served = true;
        entry.again_at = 0;
    }
    void note_no_device(const rendezvous::Address& address, uint64_t now) {
        found_or_made(address).again_at = now + asked_again_after;
    }

  private:
    struct Entry {
        rendezvous::Address address;
        uint64_t again_at = 0;
        bool served = false;
    };
    [[nodiscard]] const Entry* find(const rendezvous::Address& address) const {
        const auto* const end = entries_.begin() + std::min(made_, entries_.size());
        const auto* const found = std::find_if(
            entries_.begin(), end, [&](const Entry& entry) { return entry.address.bytes == address.bytes; });
        return found != end ? found : nullptr;
    }
    Entry& found_or_made(const rendezvous::Address& address) {
        if (const Entry* found = find(address); found != nullptr) {
            return entries_[static_cast<size_t>(found - entries_.data())];
        }
        Entry& made = entries_[made_++ % entries_.size()];
        made = {address, 0, false};
        return made;
    }

    std::array<Entry, 16> entries_; // the most recent ones
    size_t made_ = 0;
};

// Pauses between attempts that fail: twice as long each time.
class RetryPause {
  public:
    static constexpr uint64_t first = 1 * second_ns;
    static constexpr uint64_t longest = 600 * second_ns;

    [[nodiscard]] bool is_over(uint64_t now) const { return now >= again_at_; }
    void note_failed(uint64_t now) {
        pause_ = std::clamp(2 * pause_, first, longest);
        again_at_ = now + pause_;
    }
    void note_succeeded() { pause_ = again_at_ = 0; }

  private:
    uint64_t pause_ = 0;
    uint64_t again_at_ = 0;
};

} // namespace preload::fabric
