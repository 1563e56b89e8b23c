// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/stats/page.hpp"

#include <algorithm>
#include <atomic>
#include <optional>

#include "base/stats_writer.hpp"
#include "preload/base/system.hpp"
#include "preload/connection/table.hpp"
#include "preload/stats/probes.hpp"

namespace preload::stats {

using base::stats::Header;

namespace {

enum class Stage : uint8_t { none, making, made, impossible };

constinit std::atomic<Stage> stage{Stage::none};
// Never moves: a child's page has the address of its parent's, so that no pointer to a row ever dangles.
constinit std::atomic<Header*> address{nullptr};

Header* made() { return stage.load(std::memory_order_acquire) == Stage::made ? address.load() : nullptr; }

constexpr auto system_call = [](long number, auto... arguments) { return sys::call(number, arguments...); };

Header* make() {
    Stage none = Stage::none;
    if (stage.load(std::memory_order_relaxed) != Stage::none || !stage.compare_exchange_strong(none, Stage::making)) {
        return made();
    }
    Header* header = base::stats::make_page(base::stats::Library::preload, address.load(), system_call);
    if (header == nullptr) {
        stage = Stage::impossible;
        return nullptr;
    }
    address = header;
    stage.store(Stage::made, std::memory_order_release);
    return header;
}

base::stats::Role role_of(Role role) {
    using base::stats::Role;
    switch (role) {
    case preload::Role::connect:
        return Role::connect;
    case preload::Role::accept:
        return Role::accept;
    case preload::Role::listen:
        return Role::listen;
    case preload::Role::adopted:
        return Role::inherited;
    default:
        return Role::none;
    }
}

// first: the connection has not been described, and was not found to have no row.
Row* describe(Connection& c, int fd, bool first) {
    Header* header = make();
    if (header == nullptr) {
        // While another thread makes the page, the next call tries again.
        c.row_claimed.store(stage.load() == Stage::impossible, std::memory_order_relaxed);
        return nullptr;
    }
    Row* row = base::stats::place_of<Row>(header, c.ordinal);
    if (row == nullptr) {
        header->without_row.fetch_add(first ? 1 : 0, std::memory_order_relaxed);
        return nullptr;
    }
    base::stats::note_used(*header, c.ordinal);
    {
        const base::stats::Change change(*row);
        row->fd.store(fd, std::memory_order_relaxed);
        row->role.store(static_cast<uint32_t>(role_of(c.role)), std::memory_order_relaxed);
        row->began_ns.store(base::stats::clock_ns(CLOCK_MONOTONIC_COARSE), std::memory_order_relaxed);
        base::stats::renew(*row);
        detail::refresh_row(*row, c, *c.state.load());
        row->live.store(1, std::memory_order_relaxed);
    }
    c.row.store(row, std::memory_order_release); // behind its zeros
    return row;
}

// Why the connection uses the kernel at its end.
Reason last_reason(const Row& row) {
    const auto reason = static_cast<Reason>(row.reason.load(std::memory_order_relaxed));
    const bool upgraded = row.upgrades.load(std::memory_order_relaxed) != 0;
    return reason == Reason::none && !upgraded ? Reason::young : reason;
}

} // namespace

void began(Connection& c, int fd) {
    describe(c, fd, !c.row_claimed.exchange(true, std::memory_order_relaxed));
    RSPRELOAD_PROBE(connect, fd, static_cast<int>(c.role));
}

void ended(Connection& c) {
    // A call in another thread may still count in the row, so it stays the connection's.
    Row* row = c.row.load(std::memory_order_relaxed);
    Header* header = made();
    if (row == nullptr || header == nullptr || row->live.load(std::memory_order_relaxed) == 0) {
        return;
    }
    const ConnectionState& s = *c.state.load();
    // Another process has the connection, and counts it.
    const bool passed_on = !c.used.load() && s.holders.load() > 1;
    const bool counted = c.role != Role::listen && !passed_on;
    std::optional<base::stats::Ending> ending;
    if (counted) {
        ending.emplace(header->ended);
    }
    detail::refresh_row(*row, c, s);
    const base::stats::Change change(*row);
    row->live.store(0, std::memory_order_relaxed);
    if (ending) {
        ending->count(*row, static_cast<uint32_t>(last_reason(*row)));
        ending.reset();
    }
}

void slept(uint64_t ns) {
    if (Header* header = made(); header != nullptr) {
        header->sleeps.fetch_add(1, std::memory_order_relaxed);
        header->slept_ns.fetch_add(ns, std::memory_order_relaxed);
    }
}

void refresh(Connection& c) {
    // An inherited connection gets a row when this process moves bytes on it.
    if (Row* row = c.row.load(std::memory_order_relaxed); row != nullptr) {
        detail::refresh_row(*row, c, *c.state.load());
    }
}

void after_fork_in_child() {
    table::for_each_connection([](int, Connection& c) {
        c.row.store(nullptr, std::memory_order_relaxed);
        c.row_claimed.store(false, std::memory_order_relaxed);
    });
    Header* parents = address.load();
    if (parents == nullptr) {
        stage = Stage::none;
        return;
    }
    const bool empty = base::stats::leave_to_parent(base::stats::Library::preload, parents, system_call);
    stage = empty ? Stage::none : Stage::impossible;
}

namespace detail {

Row* describe_late(Connection& c) {
    const ConnectionState* s = c.state.load();
    const int fd = c.fd.load();
    // Not if another thread has just closed it, or describes it.
    if (s == nullptr || c.row_claimed.load(std::memory_order_relaxed) || table::connection(fd) != &c ||
        c.row_claimed.exchange(true, std::memory_order_relaxed)) {
        return nullptr;
    }
    return describe(c, fd, true);
}

void compare(Row& row, const Connection& c, const ConnectionState& s) {
    if (row.seen.load(std::memory_order_relaxed) != seen_of(s)) {
        refresh_row(row, c, s);
    }
}

void moved_rare_case(Connection& c, ConnectionState& s, bool received, uint64_t n, uint64_t by_path, uint32_t buffer) {
    by_path = std::min(by_path, n); // the state is another's if another thread has disconnected the socket
    (received ? s.kernel_more_in : s.kernel_more_out).fetch_add(n - by_path, std::memory_order_relaxed);
    Row* row = row_of(c);
    if (row == nullptr) {
        return;
    }
    base::stats::Traffic& traffic = received ? row->in : row->out;
    traffic.kernel_bytes.fetch_add(n - by_path, std::memory_order_relaxed);
    if (by_path == 0) {
        traffic.kernel_calls.fetch_add(1, std::memory_order_relaxed);
    } else {
        base::stats::add(traffic.path_bytes, by_path);
        base::stats::add(traffic.path_calls, 1);
        traffic.buffer_bytes.store(buffer, std::memory_order_relaxed);
    }
    compare(*row, c, s);
}

void refresh_row(Row& row, const Connection& c, const ConnectionState& s) {
    // Another thread may change the other direction meanwhile, and its update may be overwritten here.
    constexpr int max_attempts = 4;
    for (int i = 0; i < max_attempts; ++i) {
        const uint64_t seen = seen_of(s);
        const bool in = (s.in_epoch.load(std::memory_order_relaxed) & 1) != 0;
        const bool out = (s.out_epoch.load(std::memory_order_relaxed) & 1) != 0;
        row.path.store((in ? base::stats::receives_by_path : 0) | (out ? base::stats::sends_by_path : 0) |
                           (c.mirrored.load(std::memory_order_relaxed) ? base::stats::over_fabric : 0) |
                           (row.path.load(std::memory_order_relaxed) & base::stats::over_fabric),
                       std::memory_order_relaxed);
        row.reason.store(static_cast<uint32_t>(s.reason.load(std::memory_order_relaxed)), std::memory_order_relaxed);
        row.upgrades.store(s.upgrades.load(std::memory_order_relaxed), std::memory_order_relaxed);
        row.returns.store(s.returns.load(std::memory_order_relaxed), std::memory_order_relaxed);
        row.seen.exchange(seen); // the state is compared once these are visible
        if (seen_of(s) == seen) {
            return;
        }
    }
}

} // namespace detail

} // namespace preload::stats
