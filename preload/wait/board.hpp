// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Memory that a process shares with peers of its user: for each of its wake-up ids, whether somebody has notified it
// since it last looked. Only the first to do so writes the descriptor; for the others there is nothing to do.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "preload/base/system.hpp"

namespace preload {

struct Board {
    static constexpr size_t count = 32;

    // A peer's: it may write anything there, which wakes it in vain, or not at all.
    struct alignas(64) Place {
        std::atomic<uint64_t> notified{0}; // when, by CLOCK_MONOTONIC in ns; 0: not since it last looked
    };
    static constexpr uint64_t is_written = 1; // of that: its descriptor, since

    std::array<Place, count> places;

    // An empty memory file for one, close-on-exec; negative: there is none.
    static int open_file();
    // Lays it out and maps it; fd stays the caller's, and may be negative. Null: there is no memory.
    static Board* make(int fd);
    // Null: it is none, or could become smaller under those who use it.
    static Board* map(int fd);
    static void unmap(Board* board);
    // In a child after a fork: memory of its own is in its place, since the fork may have been in a signal handler that
    // has interrupted somebody who uses it.
    static void leave_to_parent(Board* board);

    // 0: its descriptor was written, and it has not looked since. Else the caller writes it, and then says so by
    // written(). Somebody else's notice counts for nothing before that: who gave it may be stopped.
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
        place.notified.compare_exchange_strong(notice, notice | is_written); // it may have looked meanwhile
    }
    // In ns, to two of them.
    static uint64_t notified_at(const Place& place) { return place.notified.load(std::memory_order_relaxed); }
    // Before it looks at what it may have been notified of.
    static void clear(Place& place) { (void)place.notified.exchange(0); }
};

} // namespace preload
