// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// One end of a TCP connection as this process has it: its numbers, its view of the shared state, and the mapping of the
// memory file. Connections are never freed, only used again: a call that found one by a number which another thread
// closes meanwhile reads old news, not freed memory.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include <sys/types.h>

#include "base/stats_page.hpp"
#include "preload/connection/state.hpp"
#include "preload/path/segment.hpp"
#include "preload/rendezvous/ends.hpp"

namespace preload {

enum class Role : uint8_t { none, connect, accept, listen, adopted };

enum class Guard : uint8_t { none, asked, on };

struct Watch; // a member of an epoll set, see wait/epoll_set.hpp

struct Connection {
    std::atomic<ConnectionState*> state{nullptr};
    std::atomic<path::Segment*> segment{nullptr};
    std::atomic<int> numbers{0};
    std::atomic<int> fd{-1}; // one of them
    Role role = Role::none;
    // 1: the service works on it; 2: besides, it was closed, and the service is to free it.
    std::atomic<uint8_t> requested{0};
    std::atomic<bool> attached{false};  // it was upgraded in this process, after the last fork
    std::atomic<bool> used{false};      // this process moved bytes on it
    std::atomic<bool> left{false};      // this process is about to close it, see ConnectionState::open
    std::atomic<bool> standard{false};  // pinned since one of its numbers is that of a standard stream
    std::atomic<bool> same_user{false}; // the peer's process is of this one's user
    std::atomic<uid_t> peer_user{0};
    std::atomic<bool> duplicated{false}; // the worker has it, too
    std::atomic<bool> mirrored{false}; // the segment is a worker's, which plays the far end in it: see path/segment.hpp
    std::atomic<uint64_t> asked_for{0}; // the peer's wake-up id whose descriptor was asked for last
    // A thread that sleeps on an eventfd alone, and not on the socket: the service watches that for it.
    std::atomic<Guard> guard{Guard::none};
    std::atomic<uint64_t> guarded{0};       // the thread's wake-up id
    std::atomic<uint32_t> kernel_events{0}; // how many the service has seen
    std::atomic<uint32_t> kernel_events_handled{0};
    std::atomic<uint32_t> sleeps{0};
    std::array<uint8_t*, 2> give_back{}; // by direction, where mapped: path::map_give_back()
    std::atomic<bool> watched{false};    // it has memberships
    Watch* watches = nullptr;            // its memberships, under epoll_members.cpp's lock
    rendezvous::Address peer;            // for the record: the kernel forgets it with the connection
    Connection* next = nullptr;          // of those not in use
    uint32_t ordinal = 0;                // its place in the page of counters, see stats/page.hpp
    std::atomic<base::stats::Row*> row{nullptr};
    std::atomic<Connection*> next_request{nullptr};

    // What both ends share; nothing of the kind, to be read and written in vain, where another thread has just closed
    // the connection.
    [[nodiscard]] path::Segment& shared() const {
        path::Segment* found = segment.load();
        return found != nullptr ? *found : path::no_segment;
    }
    // Where this end writes and reads in the segment.
    [[nodiscard]] unsigned out_index() const { return state.load()->out_direction.load(std::memory_order_relaxed); }
    [[nodiscard]] path::Direction& out_ring() const { return shared().direction[out_index()]; }
    [[nodiscard]] path::Direction& in_ring() const { return shared().direction[1 - out_index()]; }
};

} // namespace preload
