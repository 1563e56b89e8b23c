// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/stats/page.hpp"

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
constinit std::atomic<uint32_t> ordinals{0};

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

Row* describe(Connection& c, int fd) {
    Header* header = make();
    if (header == nullptr) {
        return nullptr;
    }
    Row* row = base::stats::place_of<Row>(header, c.ordinal);
    if (row == nullptr) {
        header->without_row.fetch_add(1, std::memory_order_relaxed);
        return nullptr;
    }
    base::stats::note_used(*header, c.ordinal);
    {
        const base::stats::Change change(*row);
        row->fd.store(fd, std::memory_order_relaxed);
        row->role.store(static_cast<uint32_t>(role_of(c.role)), std::memory_order_relaxed);
        row->began_ns.store(base::stats::clock_ns(CLOCK_MONOTONIC_COARSE), std::memory_order_relaxed);
        base::stats::renew(*row);
        const ConnectionState& s = *c.state.load();
        detail::refresh_row(*row, c, s, detail::seen_of(s));
        row->live.store(1, std::memory_order_relaxed);
    }
    c.row.store(row, std::memory_order_relaxed);
    return row;
}

// Why the connection uses the kernel at its end.
Reason last_reason(const Row& row) {
    const auto reason = static_cast<Reason>(row.reason.load(std::memory_order_relaxed));
    const bool upgraded = row.upgrades.load(std::memory_order_relaxed) != 0;
    return reason == Reason::none && !upgraded ? Reason::young : reason;
}

} // namespace

uint32_t next_ordinals(uint32_t count) { return ordinals.fetch_add(count, std::memory_order_relaxed); }

void began(Connection& c, int fd) {
    (void)describe(c, fd);
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
    detail::refresh_row(*row, c, s, detail::seen_of(s));
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
    // Not in a new page, where a connection gets a row when this process moves bytes on it.
    Row* row = c.row.load(std::memory_order_relaxed);
    if (row != nullptr && row->generation.load(std::memory_order_relaxed) != 0) {
        detail::update(*row, c, *c.state.load());
    }
}

void after_fork_in_child() {
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
    // Not if another thread has just closed it.
    return s != nullptr && table::connection(fd) == &c && stage.load(std::memory_order_relaxed) != Stage::impossible
               ? describe(c, fd)
               : nullptr;
}

void refresh_row(Row& row, const Connection& c, const ConnectionState& s, uint64_t seen) {
    const bool in = (s.in_epoch.load(std::memory_order_relaxed) & 1) != 0;
    const bool out = (s.out_epoch.load(std::memory_order_relaxed) & 1) != 0;
    row.path.store((in ? base::stats::receives_by_path : 0) | (out ? base::stats::sends_by_path : 0) |
                       (c.mirrored.load(std::memory_order_relaxed) ? base::stats::over_fabric : 0),
                   std::memory_order_relaxed);
    row.reason.store(static_cast<uint32_t>(s.reason.load(std::memory_order_relaxed)), std::memory_order_relaxed);
    row.upgrades.store(s.upgrades.load(std::memory_order_relaxed), std::memory_order_relaxed);
    row.returns.store(s.returns.load(std::memory_order_relaxed), std::memory_order_relaxed);
    row.seen.store(seen, std::memory_order_relaxed);
}

} // namespace detail

} // namespace preload::stats
