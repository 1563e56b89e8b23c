// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/stats/page.hpp"

#include <atomic>
#include <new>

#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>

#include "preload/base/system.hpp"
#include "preload/connection/table.hpp"
#include "preload/stats/probes.hpp"

namespace preload::stats {

using base::stats::Header;

namespace {

enum class Stage : uint8_t { none, making, made, impossible };

constinit std::atomic<Stage> stage{Stage::none};
// Stays where it is: a child's page has the address of its parent's, so that no pointer to a row ever dangles.
constinit std::atomic<Header*> address{nullptr};
constinit std::atomic<uint32_t> ordinals{0};

Header* made() { return stage.load(std::memory_order_acquire) == Stage::made ? address.load() : nullptr; }

// Attaches a segment at `wanted`, or anywhere, and marks it for removal: it goes with the last process that has it.
Header* attach(Header* wanted) {
    const long id = sys::call(SYS_shmget, IPC_PRIVATE, base::stats::page_bytes, IPC_CREAT | SHM_NORESERVE | 0600);
    if (id < 0) {
        return nullptr;
    }
    const long at = sys::call(SYS_shmat, id, wanted, wanted != nullptr ? SHM_REMAP : 0);
    sys::call(SYS_shmctl, id, IPC_RMID, nullptr);
    return at > 0 || at < -4095 ? reinterpret_cast<Header*>(at) : nullptr;
}

Header* make() {
    Stage none = Stage::none;
    if (stage.load(std::memory_order_relaxed) != Stage::none || !stage.compare_exchange_strong(none, Stage::making)) {
        return made();
    }
    Header* header = attach(address.load());
    if (header == nullptr) {
        stage = Stage::impossible;
        return nullptr;
    }
    sys::call(SYS_madvise, header, base::stats::page_bytes, MADV_DONTDUMP);
    new (header) Header;
    header->version = base::stats::version;
    header->row_bytes = sizeof(Row);
    header->rows = base::stats::max_rows;
    timespec now{};
    clock_gettime(CLOCK_BOOTTIME, &now);
    header->made_ns = static_cast<uint64_t>(now.tv_sec) * 1000000000U + static_cast<uint64_t>(now.tv_nsec);
    std::atomic_ref(header->magic).store(base::stats::magic, std::memory_order_release);
    address = header;
    stage.store(Stage::made, std::memory_order_release);
    return header;
}

Row* place_of(Header* header, uint32_t ordinal) {
    auto* rows = reinterpret_cast<Row*>(reinterpret_cast<char*>(header) + base::stats::header_bytes);
    return ordinal < base::stats::max_rows ? rows + ordinal : nullptr;
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

uint64_t now_coarse_ns() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1000000000U + static_cast<uint64_t>(time.tv_nsec);
}

void renew(base::stats::Traffic& traffic) {
    for (base::stats::Word* word :
         {&traffic.bytes, &traffic.path_bytes, &traffic.calls, &traffic.wakeups, &traffic.blocked}) {
        word->store(0, std::memory_order_relaxed);
    }
    traffic.buffer_bytes.store(0, std::memory_order_relaxed);
}

Row* describe(Connection& c, int fd) {
    Header* header = make();
    if (header == nullptr) {
        return nullptr;
    }
    Row* row = place_of(header, c.ordinal);
    if (row == nullptr) {
        header->without_row.fetch_add(1, std::memory_order_relaxed);
        return nullptr;
    }
    uint32_t used = header->rows_used.load(std::memory_order_relaxed);
    while (used <= c.ordinal && !header->rows_used.compare_exchange_weak(used, c.ordinal + 1)) {
    }
    const uint32_t generation = row->generation.load(std::memory_order_relaxed) | 1;
    row->generation.exchange(generation, std::memory_order_acq_rel); // nothing below comes before it
    row->fd.store(fd, std::memory_order_relaxed);
    row->role.store(static_cast<uint32_t>(role_of(c.role)), std::memory_order_relaxed);
    row->began_ns.store(now_coarse_ns(), std::memory_order_relaxed);
    row->sleeps.store(0, std::memory_order_relaxed);
    renew(row->in);
    renew(row->out);
    const ConnectionState& s = *c.state.load();
    detail::refresh_row(*row, s, detail::seen_of(s));
    row->live.store(1, std::memory_order_relaxed);
    row->generation.store(generation + 1, std::memory_order_release);
    c.row.store(row, std::memory_order_relaxed);
    return row;
}

uint64_t taken(const base::stats::Word& word) { return word.load(std::memory_order_relaxed); }

void count(base::stats::Word& word, uint64_t n) {
    if (n != 0) {
        word.fetch_add(n, std::memory_order_relaxed);
    }
}

} // namespace

uint32_t next_ordinals(uint32_t count) { return ordinals.fetch_add(count, std::memory_order_relaxed); }

void began(Connection& c, int fd) {
    (void)describe(c, fd);
    RSPRELOAD_PROBE(connect, fd, static_cast<int>(c.role));
}

void ended(Connection& c) {
    // A call in another thread may still count in the row: it stays the connection's.
    Row* row = c.row.load(std::memory_order_relaxed);
    Header* header = made();
    if (row == nullptr || header == nullptr || row->live.load(std::memory_order_relaxed) == 0) {
        return;
    }
    const ConnectionState& s = *c.state.load();
    // Another process has the connection, and counts it.
    const bool passed_on = !c.used.load() && s.holders.load() > 1;
    const bool counted = c.role != Role::listen && !passed_on;
    base::stats::Ended& ended = header->ended;
    count(ended.closing, counted ? 1 : 0);
    detail::refresh_row(*row, s, detail::seen_of(s));
    const uint32_t generation = row->generation.load(std::memory_order_relaxed);
    row->generation.exchange(generation | 1, std::memory_order_acq_rel);
    row->live.store(0, std::memory_order_relaxed);
    if (counted) {
        const base::stats::Traffic* ways[] = {&row->in, &row->out};
        for (unsigned i = 0; i < 2; ++i) {
            count(ended.bytes[i], taken(ways[i]->bytes));
            count(ended.path_bytes[i], taken(ways[i]->path_bytes));
            count(ended.calls[i], taken(ways[i]->calls));
            count(ended.wakeups, taken(ways[i]->wakeups));
        }
        count(ended.sleeps, taken(row->sleeps));
        const uint32_t upgrades = row->upgrades.load(std::memory_order_relaxed);
        count(ended.upgrades, upgrades);
        count(ended.returns, row->returns.load(std::memory_order_relaxed));
        count(ended.upgraded, upgrades != 0 ? 1 : 0);
        Reason reason = static_cast<Reason>(row->reason.load(std::memory_order_relaxed));
        if (reason == Reason::none && upgrades == 0) {
            reason = Reason::young;
        }
        count(ended.reasons[static_cast<uint32_t>(reason) % base::stats::max_reasons], 1);
        ended.sockets.fetch_add(1, std::memory_order_release);
    }
    row->generation.store((generation | 1) + 1, std::memory_order_release);
}

void slept(uint64_t ns) {
    if (Header* header = made(); header != nullptr) {
        header->sleeps.fetch_add(1, std::memory_order_relaxed);
        header->slept_ns.fetch_add(ns, std::memory_order_relaxed);
    }
}

void refresh(Connection& c) {
    // Not in a page that is new: it is the connection's when this process moves bytes on it.
    Row* row = c.row.load(std::memory_order_relaxed);
    if (row != nullptr && row->generation.load(std::memory_order_relaxed) != 0) {
        detail::look(*row, *c.state.load());
    }
}

void after_fork_in_child() {
    Header* parents = address.load();
    if (parents == nullptr) {
        stage = Stage::none;
        return;
    }
    // Empty memory in its place: no row is described in it, and whoever is about to write to one may.
    const long at = sys::call(SYS_mmap, parents, base::stats::page_bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    stage = at == static_cast<long>(sys::word(parents)) ? Stage::none : Stage::impossible;
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

void refresh_row(Row& row, const ConnectionState& s, uint64_t seen) {
    const bool in = (s.in_epoch.load(std::memory_order_relaxed) & 1) != 0;
    const bool out = (s.out_epoch.load(std::memory_order_relaxed) & 1) != 0;
    row.path.store((in ? base::stats::receives_by_path : 0) | (out ? base::stats::sends_by_path : 0),
                   std::memory_order_relaxed);
    row.reason.store(static_cast<uint32_t>(s.reason.load(std::memory_order_relaxed)), std::memory_order_relaxed);
    row.upgrades.store(s.upgrades.load(std::memory_order_relaxed), std::memory_order_relaxed);
    row.returns.store(s.returns.load(std::memory_order_relaxed), std::memory_order_relaxed);
    row.seen.store(seen, std::memory_order_relaxed);
}

} // namespace detail

} // namespace preload::stats
