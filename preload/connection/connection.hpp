// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// One end of a TCP connection in this process: its fds, its view of the shared state, and the mapping of the memory
// file. Connections are recycled, never freed: a call that found one by an fd that another thread closes meanwhile
// reads stale data, not freed memory.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include <sys/socket.h>
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
    std::atomic<uint32_t> uses{0}; // connections that have had this memory
    std::atomic<int> fd{-1};       // one of its fds
    Role role = Role::none;
    // 1: the service works on it; 2: it was closed meanwhile, and the service must free it.
    std::atomic<uint8_t> requested{0};
    std::atomic<bool> attached{false};  // upgraded in this process, after the last fork
    std::atomic<bool> used{false};      // this process moved bytes on it
    std::atomic<bool> polled{false};    // see wait/seen.hpp, as refusals
    std::atomic<uint32_t> refusals{0};  // consecutive calls that failed with EAGAIN
    std::atomic<bool> left{false};      // this process is about to close it, see ConnectionState::open
    std::atomic<bool> resets{false};    // the library has changed SO_LINGER, for a close that must reset
    linger linger_before{};             // the program's, then
    int seen_by_child = 0;              // used while a child begins
    std::atomic<bool> standard{false};  // pinned because one of its fds is a standard stream
    std::atomic<bool> same_user{false}; // this process and the peer's run as the same user
    std::atomic<uid_t> peer_user{0};
    std::atomic<bool> duplicated{false}; // the worker has a duplicate of the fd
    std::atomic<bool> mirrored{false};   // a worker plays the far end in the segment: see path/segment.hpp
    std::atomic<uint64_t> asked_for{0};  // the last wake-up id of the peer whose descriptor was requested
    // For a thread that sleeps on an eventfd only: the service watches the socket for it.
    std::atomic<Guard> guard{Guard::none};
    std::atomic<uint64_t> guarded{0};       // the thread's wake-up id
    std::atomic<uint32_t> kernel_events{0}; // seen by the service
    std::atomic<uint32_t> kernel_events_handled{0};
    std::atomic<uint32_t> sleeps{0};
    std::array<uint8_t*, 2> give_back{}; // by direction; null unless mapped by path::map_give_back()
    std::atomic<bool> watched{false};    // it is a member of epoll sets
    Watch* watches = nullptr;            // its memberships, under epoll_members.cpp's lock
    rendezvous::Address peer;            // for explain: the kernel drops it with the connection
    Connection* next = nullptr;          // in the list of unused ones
    uint32_t ordinal = 0;                // its row in the page of counters, see stats/page.hpp
    std::atomic<base::stats::Row*> row{nullptr};
    std::atomic<bool> row_claimed{false}; // a thread describes the row, or has found that there is none
    std::atomic<Connection*> next_request{nullptr};

    // The segment; no_segment, where accesses have no effect, if another thread has just closed the connection.
    [[nodiscard]] path::Segment& shared() const {
        path::Segment* found = segment.load();
        return found != nullptr ? *found : path::no_segment;
    }
    // The directions of the segment that this end writes and reads.
    [[nodiscard]] unsigned out_index() const { return state.load()->out_direction.load(std::memory_order_relaxed); }
    [[nodiscard]] path::Direction& out_ring() const { return shared().direction[out_index()]; }
    [[nodiscard]] path::Direction& in_ring() const { return shared().direction[1 - out_index()]; }
};

} // namespace preload
