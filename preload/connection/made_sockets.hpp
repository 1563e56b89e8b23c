// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// TCP sockets that this process has made and not connected yet, by fd, so that connect need not query the kernel; and
// what has happened to them before: a program may add a socket to an epoll set, or duplicate its fd, and then connect
// it. For other fds, the kernel is queried.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace preload {

class EpollSet;
struct Connection;

} // namespace preload

namespace preload::made_sockets {

inline constexpr size_t numbers = 65536; // fds beyond are not tracked
inline constexpr uint8_t tcp = 1;
inline constexpr uint8_t watched = 2;    // it is in an epoll set
inline constexpr uint8_t duplicated = 4; // its socket has other fds
inline constinit std::array<std::atomic<uint8_t>, numbers> notes{};

inline uint8_t note_of(int fd) {
    return static_cast<size_t>(fd) < numbers ? notes[static_cast<size_t>(fd)].load(std::memory_order_relaxed) : 0;
}
inline bool is_tcp(int fd) { return (note_of(fd) & tcp) != 0; }

// A new fd, or one that refers to something else now.
inline void note(int fd, bool is) {
    if (static_cast<size_t>(fd) < numbers) {
        notes[static_cast<size_t>(fd)].store(is ? tcp : 0, std::memory_order_relaxed);
    }
}
// For an fd that is_tcp(). The caller then checks whether it has been connected, and connect does the reverse: both
// modify the note, so that one of the two sees what the other has done before.
inline void note_watched(int fd) { notes[static_cast<size_t>(fd)].fetch_or(watched, std::memory_order_acq_rel); }
void note_duplicated(int fd, int made);

// The fd is a connection from now on: so are its socket's other fds, and epoll sets that have them are updated. An fd
// beyond the array stays with the kernel.
void note_connected(int fd);
// The same for one set: else the connection stays with the kernel.
void note_connected_in(EpollSet& set, Connection& c, int fd);

} // namespace preload::made_sockets
