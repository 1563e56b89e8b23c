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

    std::array<Place, count> places;

    // A new one, and the descriptor of its memory file. Null: there is no memory.
    static Board* make(int& fd);
    // Null: it is none, or could become smaller under those who use it.
    static Board* map(int fd);
    static void unmap(Board* board);

    // Whether it has been notified a moment ago, and has not looked since: then there is nothing to do.
    static bool notify(Place& place) {
        // Whoever was first may have been stopped before it wrote the descriptor.
        constexpr uint64_t patience_ns = 1000000;
        const uint64_t now = sys::now_ns();
        const uint64_t before = place.notified.load();
        if (before != 0 && now - before < patience_ns) {
            return true;
        }
        const uint64_t found = place.notified.exchange(now);
        return found != 0 && found != before;
    }
    static uint64_t notified_at(const Place& place) { return place.notified.load(std::memory_order_relaxed); }
    // Before it looks at what it may have been notified of.
    static void clear(Place& place) { (void)place.notified.exchange(0); }
};

} // namespace preload
