// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Creates a library's page of counters (stats_page.hpp), and begins and ends its rows in steps that keep a reader from
// taking half a row for a whole one. Nothing here takes a lock or allocates memory.
#pragma once

#include <initializer_list>
#include <new>

#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <time.h>

#include "base/stats_page.hpp"

namespace base::stats {

inline uint64_t clock_ns(clockid_t clock) {
    timespec time{};
    clock_gettime(clock, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1000000000U + static_cast<uint64_t>(time.tv_nsec);
}

// Creates the page at `wanted`, replacing the mapping there, or anywhere if `wanted` is null. Null on failure. `call`
// makes a system call, and returns its result or -errno.
template <class Call> Header* make_page(Library library, Header* wanted, Call&& call) {
    const size_t bytes = page_bytes_of(library);
    const long id = call(SYS_shmget, IPC_PRIVATE, bytes, IPC_CREAT | SHM_NORESERVE | 0600);
    if (id < 0) {
        return nullptr;
    }
    const long at = call(SYS_shmat, id, wanted, wanted != nullptr ? SHM_REMAP : 0);
    call(SYS_shmctl, id, IPC_RMID, static_cast<void*>(nullptr)); // freed with the last process that has it attached
    if (at <= 0 && at >= -4095) {
        return nullptr;
    }
    auto* header = reinterpret_cast<Header*>(at); // NOLINT(performance-no-int-to-ptr): shmat(2) returns an address
    call(SYS_madvise, header, bytes, MADV_DONTDUMP);
    new (header) Header;
    header->version = version;
    header->library = library;
    header->row_bytes = static_cast<uint32_t>(row_bytes_of(library));
    header->rows = max_rows;
    header->made_ns = clock_ns(CLOCK_BOOTTIME);
    std::atomic_ref(header->magic).store(magic, std::memory_order_release);
    return header;
}

// In a child: replaces the parent's page with empty private memory. It describes no row, and pointers to rows stay
// valid for writing. False: the mapping failed.
template <class Call> bool leave_to_parent(Library library, Header* parents, Call&& call) {
    const long at = call(SYS_mmap, parents, page_bytes_of(library), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0L);
    return at == reinterpret_cast<long>(parents);
}

// Null: `ordinal` is beyond the capacity.
template <class RowType> RowType* place_of(Header* header, uint32_t ordinal) {
    auto* rows = reinterpret_cast<RowType*>(reinterpret_cast<char*>(header) + header_bytes);
    return ordinal < max_rows ? rows + ordinal : nullptr;
}

inline void note_used(Header& header, uint32_t ordinal) {
    uint32_t used = header.rows_used.load(std::memory_order_relaxed);
    while (used <= ordinal && !header.rows_used.compare_exchange_weak(used, ordinal + 1)) {
    }
}

// Marks a row as being written for the lifetime of this object: readers skip it.
class Change {
  public:
    explicit Change(Row& row) : row_(row), odd_(row.generation.load(std::memory_order_relaxed) | 1) {
        row_.generation.exchange(odd_, std::memory_order_acq_rel); // no later write moves ahead of it
    }
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;
    ~Change() { row_.generation.store(odd_ + 1, std::memory_order_release); }

  private:
    Row& row_;
    const uint32_t odd_;
};

inline uint64_t add(Word& word, uint64_t n) { // single writer; returns the sum
    const uint64_t sum = word.load(std::memory_order_relaxed) + n;
    word.store(sum, std::memory_order_relaxed);
    return sum;
}

inline void renew(Traffic& traffic) {
    for (Word* word : {&traffic.path_bytes, &traffic.path_calls, &traffic.kernel_bytes, &traffic.kernel_calls,
                       &traffic.wakeups, &traffic.blocked}) {
        word->store(0, std::memory_order_relaxed);
    }
    traffic.buffer_bytes.store(0, std::memory_order_relaxed);
}

inline void renew(Row& row) {
    row.path.store(0, std::memory_order_relaxed);
    row.sleeps.store(0, std::memory_order_relaxed);
    renew(row.in);
    renew(row.out);
}

// Adds a closed socket to the totals. It is constructed before the socket's row ends, and destroyed once all is
// counted: a reader detects an addition in progress by comparing the two counts of sockets.
class Ending {
  public:
    explicit Ending(Ended& ended) : ended_(ended) { ended_.closing.fetch_add(1, std::memory_order_relaxed); }
    Ending(const Ending&) = delete;
    Ending& operator=(const Ending&) = delete;
    ~Ending() { ended_.sockets.fetch_add(1, std::memory_order_release); }

    void count(const Row& row, uint32_t reason) {
        const Traffic* ways[] = {&row.in, &row.out};
        const bool by_fabric = (row.path.load(std::memory_order_relaxed) & over_fabric) != 0;
        for (unsigned i = 0; i < 2; ++i) {
            count(by_fabric ? ended_.fabric_bytes[i] : ended_.path_bytes[i], ways[i]->path_bytes);
            count(ended_.kernel_bytes[i], ways[i]->kernel_bytes);
            count(ended_.calls[i], ways[i]->path_calls);
            count(ended_.calls[i], ways[i]->kernel_calls);
            count(ended_.wakeups, ways[i]->wakeups);
        }
        count(ended_.sleeps, row.sleeps);
        const uint32_t upgrades = row.upgrades.load(std::memory_order_relaxed);
        count(ended_.upgrades, upgrades);
        count(ended_.returns, row.returns);
        count(ended_.upgraded, upgrades != 0 ? 1 : 0);
        count(ended_.reasons[reason % max_reasons], 1);
    }

  private:
    static void count(Word& word, uint64_t n) {
        if (n != 0) {
            word.fetch_add(n, std::memory_order_relaxed);
        }
    }

    Ended& ended_;
};

} // namespace base::stats
