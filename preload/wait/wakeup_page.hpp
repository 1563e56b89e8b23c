// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Memory that a process shares with peers of the same user: for each of its wake-up ids, whether it was notified since
// the waiter last cleared it. Only the first notifier writes the descriptor; the others have nothing to do.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "preload/base/system.hpp"

namespace preload {

struct WakeupPage {
    static constexpr size_t count = 32;

    // Peers can store any value here: at worst, the owner's wake-up is spurious or missing.
    struct alignas(64) Slot {
        std::atomic<uint64_t> notified{0}; // time, CLOCK_MONOTONIC in ns; 0: not since clear()
    };
    static constexpr uint64_t is_written = 1; // bit of `notified`: the descriptor was written, too

    std::array<Slot, count> slots;

    // Makes an empty memory file for a page, close-on-exec. Negative: it failed.
    static int open_file();
    // Lays it out and maps it; fd stays the caller's, and may be negative. Null: no memory.
    static WakeupPage* make(int fd);
    // Null: not a page's file, or not sealed against truncation while it is mapped.
    static WakeupPage* map(int fd);
    static void unmap(WakeupPage* page);
    // In a child after fork: replaces the mapping with private memory, since the fork may have been in a signal handler
    // that interrupted a user of the page.
    static void leave_to_parent(WakeupPage* page);

    // 0: the descriptor was written, and clear() not called since. Else the caller writes it, then calls written(). A
    // notice of another thread does not count before that thread's written(): it may be stopped.
    static uint64_t notify(Slot& slot) {
        uint64_t seen = slot.notified.load();
        if (seen == 0) {
            const uint64_t now = sys::now_ns() & ~is_written;
            if (slot.notified.compare_exchange_strong(seen, now)) {
                return now;
            }
        }
        return (seen & is_written) != 0 ? 0 : seen;
    }
    static void written(Slot& slot, uint64_t notice) {
        slot.notified.compare_exchange_strong(notice, notice | is_written); // fails after a clear() in between
    }
    // In ns, with a resolution of 2 ns.
    static uint64_t notified_at(const Slot& slot) { return slot.notified.load(std::memory_order_relaxed); }
    // Called before the waiter checks for what the notice may be about.
    static void clear(Slot& slot) { slot.notified.exchange(0); }
};

} // namespace preload
