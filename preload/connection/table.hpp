// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What an fd refers to, found without a lock: a TCP connection, an epoll set, or nothing that concerns the library,
// which costs one load.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "preload/connection/connection.hpp"

namespace preload {

class EpollSet;

namespace table {

inline constexpr size_t chunk_size = 1024;
inline constexpr size_t chunk_count = 1024; // up to 2^20, the kernel's default of fs.nr_open

// A Connection, an EpollSet with set_bit, or `internal`: a descriptor of the library's own.
using Slot = std::atomic<uintptr_t>;
inline constexpr uintptr_t set_bit = 1;
inline constexpr uintptr_t internal = 2;
using Chunk = std::array<Slot, chunk_size>;
extern std::array<std::atomic<Chunk*>, chunk_count> chunks;

inline uintptr_t find(int fd) {
    const auto number = static_cast<size_t>(static_cast<unsigned>(fd));
    if (number >= chunk_size * chunk_count) {
        return 0;
    }
    Chunk* chunk = chunks[number / chunk_size].load(std::memory_order_acquire);
    return chunk != nullptr ? (*chunk)[number % chunk_size].load(std::memory_order_acquire) : 0;
}
// Where that is; null: nowhere.
inline Slot* place_of(int fd) {
    const auto number = static_cast<size_t>(static_cast<unsigned>(fd));
    if (number >= chunk_size * chunk_count) {
        return nullptr;
    }
    Chunk* chunk = chunks[number / chunk_size].load(std::memory_order_acquire);
    return chunk != nullptr ? &(*chunk)[number % chunk_size] : nullptr;
}

inline Connection* connection(int fd) {
    const uintptr_t found = find(fd);
    return (found & (set_bit | internal)) == 0 ? reinterpret_cast<Connection*>(found) : nullptr;
}

inline EpollSet* set(int fd) {
    const uintptr_t found = find(fd);
    return (found & set_bit) != 0 ? reinterpret_cast<EpollSet*>(found & ~set_bit) : nullptr;
}

// The fd refers to `what` from now on; `before` is set to the previous entry. False: no memory, or an fd beyond the
// table, which is not tracked.
bool put(int fd, uintptr_t what, uintptr_t& before);
uintptr_t take(int fd);            // empties the entry
bool take(int fd, uintptr_t what); // if it refers to that; false: another thread was first

// Calls body(fd, what) for each entry that is not empty.
template <class Body> void for_each(Body&& body) {
    for (size_t i = 0; i < chunk_count; ++i) {
        Chunk* chunk = chunks[i].load(std::memory_order_acquire);
        for (size_t j = 0; chunk != nullptr && j < chunk_size; ++j) {
            if (const uintptr_t what = (*chunk)[j].load(std::memory_order_acquire); what != 0) {
                body(static_cast<int>(i * chunk_size + j), what);
            }
        }
    }
}

template <class Body> void for_each_connection(Body&& body) {
    for_each([&](int fd, uintptr_t what) {
        if ((what & (set_bit | internal)) == 0) {
            body(fd, *reinterpret_cast<Connection*>(what));
        }
    });
}

template <class Body> void for_each_set(Body&& body) {
    for_each([&](int fd, uintptr_t what) {
        if ((what & set_bit) != 0) {
            body(fd, *reinterpret_cast<EpollSet*>(what & ~set_bit));
        }
    });
}

} // namespace table
} // namespace preload
