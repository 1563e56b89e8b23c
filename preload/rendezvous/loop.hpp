// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// epoll data in the service's set: 0 is the inbox, and a value without a mark is a Meeting's address.
#pragma once

#include <cstdint>

#include "preload/base/system.hpp"

namespace preload::rendezvous {

inline constexpr uint64_t connection_mark = uint64_t{1} << 63; // with the connection's fd
inline constexpr uint64_t worker_mark = uint64_t{1} << 61;     // the worker of the fabric path
inline constexpr uint64_t channel_mark = uint64_t{1} << 62;    // with the channel's index

// Adds the fd to the set, or changes its events. False: no memory.
inline bool watch(int epoll, int fd, uint32_t events, uint64_t data) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = data;
    long result = sys::call(SYS_epoll_ctl, epoll, EPOLL_CTL_MOD, fd, &event);
    if (result == -ENOENT) {
        result = sys::call(SYS_epoll_ctl, epoll, EPOLL_CTL_ADD, fd, &event);
    }
    return result == 0;
}

// Before the fd is closed, if another process may have it: a forked child has it until it executes a program or ends,
// and the set reports it as long.
inline void unwatch(int epoll, int fd) { sys::call(SYS_epoll_ctl, epoll, EPOLL_CTL_DEL, fd, nullptr); }

// Watches an upgraded connection for the peer's EOF, and for further events. Without memory for that, the program's
// own calls are the first to notice them.
inline void watch_connection(int epoll, int fd, uint32_t events) {
    watch(epoll, fd, EPOLLRDHUP | EPOLLET | events, connection_mark | static_cast<unsigned>(fd));
}

} // namespace preload::rendezvous
