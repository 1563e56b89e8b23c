// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The page of shared memory in which a library of a process counts, and which rsstat reads: a header, then a row for
// each socket. A process has a page for each of the two libraries that it uses. It is a System V segment that is marked
// for removal as soon as it is attached: it has no name and no descriptor, the kernel lists it with its creator in
// /proc/sysvipc/shm, and it goes with the process that has it attached, however that ends.
//
// The process alone writes, and never waits for a reader. A row is described anew between two changes of its
// generation, which is odd meanwhile: a reader that finds another generation afterwards reads again. Counters only grow
// while a generation lasts, and each is one word. A reader believes nothing: it takes the page's size from the kernel,
// and knows that the process may write anything at any time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace base::stats {

inline constexpr uint64_t magic = 0x6761'7073'7472'7372; // "rsrtspag"
inline constexpr uint32_t version = 1;                   // of what follows: another one is not read

enum class Library : uint32_t { preload = 1, sockets = 2 };
enum class Role : uint32_t { none, connect, accept, listen, inherited };
// Bits of Row::path.
inline constexpr uint32_t receives_by_path = 1;
inline constexpr uint32_t sends_by_path = 2;
inline constexpr uint32_t over_fabric = 4; // the path that there is, or may be, goes to another host

inline constexpr uint32_t max_reasons = 64;
inline constexpr uint32_t max_rows = 16384;
inline constexpr size_t header_bytes = 4096;

using Word = std::atomic<uint64_t>;
using Half = std::atomic<uint32_t>;

// By direction: what this process has received, and what it has sent.
struct alignas(64) Traffic {
    Word bytes{0};        // the program's
    Word path_bytes{0};   // of them, not by the kernel
    Word calls{0};        // that moved bytes
    Word wakeups{0};      // of the peer: for space after receiving, for data after sending
    Word blocked{0};      // sending: there was no space
    Half buffer_bytes{0}; // of shared memory in use in this direction
};

struct alignas(64) Row {
    Half generation{0}; // odd: being changed; 0: never used
    Half live{0};
    std::atomic<int32_t> fd{-1};
    Half role{0};
    Half path{0};
    Half reason{0}; // why it is with the kernel: preload/connection/state.hpp
    Half upgrades{0};
    Half returns{0};
    Word began_ns{0}; // CLOCK_MONOTONIC
    Word seen{0};     // the writer's own: whether path and reason are as they were
    Word sleeps{0};   // of threads in calls that received or sent
    Traffic in;
    Traffic out;
};

// What only the library knows of a socket that the kernel does not see: see SocketRow.
struct alignas(64) Ends {
    Word local[3]{};  // an address: its family, with the port in the next 16 bits; then 4 or 16 bytes, as on the wire
    Word peer[3]{};   // family 0: none
    Word device[6]{}; // the core and its domain, "verbs/mlx5_0": up to a zero byte
};

// A row of librsocket-ofi's. The path is the fabric, both ways.
struct SocketRow : Row {
    Ends ends;
};

// Of all sockets of the process that have been closed.
struct Ended {
    Word closing{0}; // sockets that have begun to be counted here; as many as `sockets` when nothing is half counted
    Word sockets{0};
    Word upgraded{0}; // of them
    Word bytes[2]{};  // received, sent
    Word path_bytes[2]{};
    Word calls[2]{};
    Word wakeups{0};
    Word sleeps{0};
    Word upgrades{0};
    Word returns{0};
    Word reasons[max_reasons]{};
};

struct Header {
    uint64_t magic = 0; // the last that is written
    uint32_t version = 0;
    Library library = Library::preload;
    uint32_t row_bytes = 0;
    uint32_t rows = 0;    // there is space for
    uint64_t made_ns = 0; // CLOCK_BOOTTIME
    Half rows_used{0};    // all further ones are empty
    Half without_row{0};  // sockets for which there was none
    Word sleeps{0};       // of the process's threads, in whatever call
    Word slept_ns{0};
    Ended ended;
};
static_assert(sizeof(Header) <= header_bytes);
static_assert(sizeof(Row) == 192);

static_assert(sizeof(SocketRow) == 320);

constexpr size_t row_bytes_of(Library library) { return library == Library::sockets ? sizeof(SocketRow) : sizeof(Row); }
constexpr size_t page_bytes_of(Library library) { return header_bytes + size_t{max_rows} * row_bytes_of(library); }

} // namespace base::stats
