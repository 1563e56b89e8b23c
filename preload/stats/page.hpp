// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// This process's page of counters for rsstat, see base/stats_page.hpp. The first TCP socket creates it. A process
// without a page counts nothing.
//
// Counting bytes makes no system call, and uses no locked instruction where a lock of the connection is held.
#pragma once

#include <cstdint>

#include "base/stats_writer.hpp"
#include "preload/connection/connection.hpp"

namespace preload::stats {

using base::stats::Row;

// Reserves the indexes of rows for this many connections, which keep them while the process lives; returns the first.
uint32_t next_ordinals(uint32_t count);

void began(Connection& c, int fd); // a connection or a listener
void ended(Connection& c);         // its last fd is closed
void slept(uint64_t ns);           // a thread of the process
// Updates the connection's path and reason, after a change.
void refresh(Connection& c);
void after_fork_in_child();

namespace detail {

// Describes the connection in a new page. Null: there is none.
Row* describe_late(Connection& c);
void refresh_row(Row& row, const Connection& c, const ConnectionState& s, uint64_t seen);

inline uint64_t seen_of(const ConnectionState& s) {
    return uint64_t{s.in_epoch.load(std::memory_order_relaxed)} << 34 ^
           uint64_t { s.out_epoch.load(std::memory_order_relaxed) } << 5 ^
           static_cast<uint64_t>(s.reason.load(std::memory_order_relaxed));
}

inline Row* row_of(Connection& c) {
    Row* row = c.row.load(std::memory_order_relaxed);
    if (row == nullptr || row->generation.load(std::memory_order_relaxed) == 0) [[unlikely]] {
        return describe_late(c);
    }
    return row;
}

inline void update(Row& row, const Connection& c, const ConnectionState& s) {
    if (const uint64_t seen = seen_of(s); row.seen.load(std::memory_order_relaxed) != seen) [[unlikely]] {
        refresh_row(row, c, s, seen);
    }
}

} // namespace detail

// Bytes moved by the kernel in a call that holds no lock.
inline void moved_plain(Connection& c, const ConnectionState& s, bool received, uint64_t n) {
    if (Row* row = detail::row_of(c); row != nullptr) {
        base::stats::Traffic& traffic = received ? row->in : row->out;
        traffic.bytes.fetch_add(n, std::memory_order_relaxed);
        traffic.calls.fetch_add(1, std::memory_order_relaxed);
        detail::update(*row, c, s);
    }
}

// Bytes moved with the lock of the direction held.
inline void moved_locked(Connection& c, const ConnectionState& s, bool received, uint64_t n) {
    if (Row* row = detail::row_of(c); row != nullptr) {
        base::stats::Traffic& traffic = received ? row->in : row->out;
        base::stats::add(traffic.bytes, n);
        base::stats::add(traffic.calls, 1);
        detail::update(*row, c, s);
    }
}

// The part of them that went by the path; buffer: the size of its buffer in bytes.
inline void moved_by_path(Connection& c, bool received, uint64_t n, uint32_t buffer) {
    if (Row* row = detail::row_of(c); row != nullptr) {
        base::stats::Traffic& traffic = received ? row->in : row->out;
        base::stats::add(traffic.path_bytes, n);
        traffic.buffer_bytes.store(buffer, std::memory_order_relaxed);
    }
}

inline void slept_on(Connection& c) {
    if (Row* row = detail::row_of(c); row != nullptr) {
        row->sleeps.fetch_add(1, std::memory_order_relaxed);
    }
}

inline void woke_peer(Connection& c, bool received) {
    if (Row* row = detail::row_of(c); row != nullptr) {
        (received ? row->in : row->out).wakeups.fetch_add(1, std::memory_order_relaxed);
    }
}

inline void blocked(Connection& c) {
    if (Row* row = detail::row_of(c); row != nullptr) {
        row->out.blocked.fetch_add(1, std::memory_order_relaxed);
    }
}

} // namespace preload::stats
