// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// This process's page of counters for rsstat, see base/stats_page.hpp. The first TCP socket creates it. A process
// without a page counts nothing.
//
// Counting bytes by the path makes no system call, and uses no locked instruction: the lock of the direction is held.
#pragma once

#include <cstdint>

#include "base/stats_writer.hpp"
#include "preload/connection/connection.hpp"

namespace preload::stats {

using base::stats::Row;

void began(Connection& c, int fd); // a connection or a listener
void ended(Connection& c);         // its last fd is closed
void slept(uint64_t ns);           // a thread of the process
// Updates the connection's path and reason. Each change that this process makes calls it.
void refresh(Connection& c);
void after_fork_in_child();

namespace detail {

// Describes an inherited connection in this process's own page. Null: there is no row for it.
Row* describe_late(Connection& c);
void refresh_row(Row& row, const Connection& c, const ConnectionState& s);

inline uint64_t seen_of(const ConnectionState& s) {
    return uint64_t{s.in_epoch.load(std::memory_order_relaxed)} << 34 ^
           uint64_t { s.out_epoch.load(std::memory_order_relaxed) } << 5 ^
           static_cast<uint64_t>(s.reason.load(std::memory_order_relaxed));
}

inline Row* row_of(Connection& c) {
    Row* row = c.row.load(std::memory_order_relaxed);
    if (row == nullptr) [[unlikely]] {
        return describe_late(c);
    }
    return row;
}

// At some calls: refresh() has updated the row, unless another process that has the connection made the change.
void compare(Row& row, const Connection& c, const ConnectionState& s);
inline bool is_to_compare(uint64_t calls) { return calls % 64 == 0; }

// Not in a row yet, or not all of it by the path.
void moved_rare_case(Connection& c, ConnectionState& s, bool received, uint64_t n, uint64_t by_path, uint32_t buffer);

} // namespace detail

// n bytes moved by the kernel in one call, which ConnectionState::received or sent has.
inline void moved_plain(Connection& c, const ConnectionState& s, bool received, uint64_t n) {
    if (Row* row = detail::row_of(c); row != nullptr) {
        base::stats::Traffic& traffic = received ? row->in : row->out;
        traffic.kernel_bytes.fetch_add(n, std::memory_order_relaxed);
        if (detail::is_to_compare(traffic.kernel_calls.fetch_add(1, std::memory_order_relaxed) + 1)) [[unlikely]] {
            detail::compare(*row, c, s);
        }
    }
}

// The same, without these: it is pinned, or the bytes are counted as a position of TCP.
inline void moved_by_kernel(Connection& c, ConnectionState& s, bool received, uint64_t n) {
    (received ? s.kernel_more_in : s.kernel_more_out).fetch_add(n, std::memory_order_relaxed);
    moved_plain(c, s, received, n);
}

// n bytes moved in one call with the lock of the direction held, by_path of them by the path; buffer: the size of its
// buffer in bytes.
[[gnu::always_inline]] inline void moved_locked(Connection& c, ConnectionState& s, bool received, uint64_t n,
                                                uint64_t by_path, uint32_t buffer) {
    Row* row = c.row.load(std::memory_order_relaxed);
    if (row == nullptr || by_path != n) [[unlikely]] {
        detail::moved_rare_case(c, s, received, n, by_path, buffer);
        return;
    }
    base::stats::Traffic& traffic = received ? row->in : row->out;
    base::stats::add(traffic.path_bytes, n);
    traffic.buffer_bytes.store(buffer, std::memory_order_relaxed);
    if (detail::is_to_compare(base::stats::add(traffic.path_calls, 1))) [[unlikely]] {
        detail::compare(*row, c, s);
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
