// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// TCP sockets that this process has made and not connected yet, by their numbers, so that connect need not ask the
// kernel; and what has become of them before: a program may add a socket to an epoll set, or duplicate its number, and
// connect it then. Numbers of other kinds are asked for.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace preload::made_sockets {

inline constexpr size_t numbers = 65536; // of those beyond nothing is known
inline constexpr uint8_t tcp = 1;
inline constexpr uint8_t watched = 2;    // an epoll set has it
inline constexpr uint8_t duplicated = 4; // it is not its socket's only number
inline constinit std::array<std::atomic<uint8_t>, numbers> notes{};

inline uint8_t note_of(int fd) {
    return static_cast<size_t>(fd) < numbers ? notes[static_cast<size_t>(fd)].load(std::memory_order_relaxed) : 0;
}
inline bool is_tcp(int fd) { return (note_of(fd) & tcp) != 0; }

// A new one, or one that stands for something else now.
inline void note(int fd, bool is) {
    if (static_cast<size_t>(fd) < numbers) {
        notes[static_cast<size_t>(fd)].store(is ? tcp : 0, std::memory_order_relaxed);
    }
}
// Of one that is_tcp(). Whoever calls it then looks whether it has been connected, and connect the other way round:
// both change the note, so that one of two sees what the other one did before.
inline void note_watched(int fd) { notes[static_cast<size_t>(fd)].fetch_or(watched, std::memory_order_acq_rel); }
void note_duplicated(int fd, int made);

// It is a connection from now on: so are its other numbers, and the sets that have it learn of that. One beyond the
// numbers stays the kernel's.
void note_connected(int fd);

} // namespace preload::made_sockets
