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

struct Board {
    static constexpr size_t count = 32;

    // Peers can store any value here: at worst, the owner's wake-up is spurious or missing.
    struct alignas(64) Place {
        std::atomic<uint64_t> notified{0}; // time, CLOCK_MONOTONIC in ns; 0: not since clear()
    };
    static constexpr uint64_t is_written = 1; // bit of `notified`: the descriptor was written, too

    std::array<Place, count> places;

    // Makes an empty memory file for a board, close-on-exec. Negative: it failed.
    static int open_file();
    // Lays it out and maps it; fd stays the caller's, and may be negative. Null: no memory.
    static Board* make(int fd);
    // Null: not a board's file, or not sealed against truncation while it is mapped.
    static Board* map(int fd);
    static void unmap(Board* board);
    // In a child after fork: replaces the mapping with private memory, since the fork may have been in a signal handler
    // that interrupted a user of the board.
    static void leave_to_parent(Board* board);

    // 0: the descriptor was written, and clear() not called since. Else the caller writes it, then calls written(). A
    // notice of another thread does not count before that thread's written(): it may be stopped.
    static uint64_t notify(Place& place) {
        uint64_t seen = place.notified.load();
        if (seen == 0) {
            const uint64_t now = sys::now_ns() & ~is_written;
            if (place.notified.compare_exchange_strong(seen, now)) {
                return now;
            }
        }
        return (seen & is_written) != 0 ? 0 : seen;
    }
    static void written(Place& place, uint64_t notice) {
        place.notified.compare_exchange_strong(notice, notice | is_written); // fails after a clear() in between
    }
    // In ns, with a resolution of 2 ns.
    static uint64_t notified_at(const Place& place) { return place.notified.load(std::memory_order_relaxed); }
    // Called before the waiter checks for what the notice may be about.
    static void clear(Place& place) { (void)place.notified.exchange(0); }
};

} // namespace preload
