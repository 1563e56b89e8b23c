// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The page of counters of a process, for tests that run under the preload library.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <utility>

#include <sys/socket.h>
#include <sys/types.h>

#include "fabtests/common/test.hpp"
#include "util/rsstat/segments.hpp"
#include "util/rsstat/snapshot.hpp"

namespace preload_test {

using rsstat::ProcessView;
using rsstat::SocketView;

inline constexpr uint32_t both_ways = base::stats::receives_by_path | base::stats::sends_by_path;

// Of this process, or a child. A page is made by the process itself.
inline ProcessView page_of(pid_t pid) {
    auto snapshot = rsstat::take_snapshot({pid});
    if (snapshot.processes.size() != 1) {
        throw fabtests::Failure(std::to_string(snapshot.processes.size()) + " pages of the process");
    }
    return std::move(snapshot.processes.front());
}

inline bool has_page(pid_t pid) { return !rsstat::take_snapshot({pid}).processes.empty(); }

// Also those that nobody can be shown to have.
inline size_t segments_of(pid_t pid) {
    std::ifstream list("/proc/sysvipc/shm");
    size_t count = 0;
    for (std::string line; std::getline(list, line);) {
        const auto segment = rsstat::parse_segment(line);
        count += segment && segment->creator == pid ? 1 : 0;
    }
    return count;
}

inline const SocketView& socket_of(const ProcessView& process, int fd) {
    for (const SocketView& view : process.sockets) {
        if (view.counters.fd == fd) {
            return view;
        }
    }
    throw fabtests::Failure("socket " + std::to_string(fd) + " is not in the page");
}

inline void move_bytes(int from, int to, size_t size) {
    std::string data(size, 'x');
    EXPECT_EQ(send(from, data.data(), size, 0), size);
    EXPECT_EQ(recv(to, data.data(), size, MSG_WAITALL), size);
}

} // namespace preload_test
