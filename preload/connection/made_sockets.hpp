// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Which numbers stand for a TCP socket that this process has made, so that connect need not ask the kernel. Numbers of
// others, and those beyond the table, are asked for.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace preload::made_sockets {

inline constexpr size_t numbers = 65536;
inline constinit std::array<std::atomic<uint8_t>, numbers> tcp{};

inline bool is_tcp(int fd) {
    return static_cast<size_t>(fd) < numbers && tcp[static_cast<size_t>(fd)].load(std::memory_order_relaxed) != 0;
}

inline void note(int fd, bool is) {
    if (static_cast<size_t>(fd) < numbers) {
        tcp[static_cast<size_t>(fd)].store(is ? 1 : 0, std::memory_order_relaxed);
    }
}

} // namespace preload::made_sockets
