// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Atomic variables on the way of every message, without the locked instructions that they do not need: each of those
// costs as much as a small copy.
#pragma once

#include <atomic>
#include <cstdint>

namespace rstream::wire {

// A counter that one thread at a time changes, and others read.
inline void count_up(std::atomic<uint64_t>& counter, uint64_t by, std::memory_order order = std::memory_order_release) {
    counter.store(counter.load(std::memory_order_relaxed) + by, order);
}
inline void count_down(std::atomic<uint64_t>& counter, uint64_t by) {
    counter.store(counter.load(std::memory_order_relaxed) - by, std::memory_order_relaxed);
}

// What mostly is as it should be. Sequentially consistent, as a plain store: who finds it so has its place behind the
// store that made it so.
template <class T> void put(std::atomic<T>& variable, T value) {
    if (variable.load() != value) {
        variable.store(value);
    }
}

} // namespace rstream::wire
