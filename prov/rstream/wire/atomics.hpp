// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Atomic variables on the path of every message, without the locked instructions that they do not need: each of those
// costs as much as a small copy.
#pragma once

#include <atomic>
#include <cstdint>

namespace rstream::wire {

// A counter with one writer at a time and any number of readers.
inline void count_up(std::atomic<uint64_t>& counter, uint64_t by, std::memory_order order = std::memory_order_release) {
    counter.store(counter.load(std::memory_order_relaxed) + by, order);
}
inline void count_down(std::atomic<uint64_t>& counter, uint64_t by) {
    counter.store(counter.load(std::memory_order_relaxed) - by, std::memory_order_relaxed);
}

// Stores only a changed value; usually it is set already. Sequentially consistent, as a plain store: a caller that
// finds the value set is ordered after the store that set it.
template <class T> void put(std::atomic<T>& variable, T value) {
    if (variable.load() != value) {
        variable.store(value);
    }
}

} // namespace rstream::wire
