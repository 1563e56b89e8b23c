// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The page of shared memory in which a library keeps the counters of a process, and which rsstat reads: a header, then
// a row for each socket. A process has one page for each of the two libraries that it uses. The page is a System V
// segment that is marked for removal as soon as it is attached: it has no name and no descriptor, the kernel lists it
// with its creator in /proc/sysvipc/shm, and frees it with the process that has it attached, however that process ends.
//
// Only the process writes, and it never waits for a reader. A row is a seqlock: its generation is odd while the row is
// rewritten, and a reader that finds another generation after its read reads again. Within a generation, counters only
// increase, and each is one word. A reader trusts nothing: it takes the page's size from the kernel, and the process
// may write anything at any time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace base::stats {

inline constexpr uint64_t magic = 0x6761'7073'7472'7372; // "rsrtspag"
inline constexpr uint32_t version = 3;                   // of the layout below: readers ignore other versions

enum class Library : uint32_t { preload = 1, sockets = 2 };
enum class Role : uint32_t { none, connect, accept, listen, inherited };
// Bits of Row::path.
inline constexpr uint32_t receives_by_path = 1;
inline constexpr uint32_t sends_by_path = 2;
inline constexpr uint32_t over_fabric = 4; // the path, present, past or possible, goes to another host

inline constexpr uint32_t max_reasons = 64;
inline constexpr uint32_t max_rows = 16384;
inline constexpr size_t header_bytes = 4096;

using Word = std::atomic<uint64_t>;
using Half = std::atomic<uint32_t>;

// Counters of one direction: what this process has received, or has sent. Each byte and each call is counted once, and
// readers add up: a sum and a part of it, which are not updated together, would let their difference fall.
struct alignas(64) Traffic {
    Word path_bytes{0};   // payload that did not go through the kernel
    Word path_calls{0};   // calls that moved such bytes
    Word kernel_bytes{0}; // payload that did
    Word kernel_calls{0}; // calls that moved nothing else
    Word wakeups{0};      // sent to the peer: for space after receiving, for data after sending
    Word blocked{0};      // sends that found no space
    Half buffer_bytes{0}; // of shared memory in use in this direction
};

struct alignas(64) Row {
    Half generation{0}; // odd: being written; 0: never used
    Half live{0};
    std::atomic<int32_t> fd{-1};
    Half role{0};
    Half path{0};
    Half reason{0}; // why it uses the kernel: preload/connection/state.hpp
    Half upgrades{0};
    Half returns{0};
    Word began_ns{0}; // CLOCK_MONOTONIC
    Word seen{0};     // private to the writer: detects changes of path and reason; links free rows
    Word sleeps{0};   // of threads in calls that receive or send
    Traffic in;
    Traffic out;
};

// Fields that only the library can supply, since the kernel does not see the socket: see SocketRow.
struct alignas(64) Ends {
    Word local[3]{};  // an address: the family, the port in the next 16 bits, then 4 or 16 bytes in network order
    Word peer[3]{};   // family 0: none
    Word device[6]{}; // core and domain, "verbs/mlx5_0", up to a NUL byte
};

// A row of librsocket-ofi. Its path is the fabric in both directions.
struct SocketRow : Row {
    Ends ends;
};

// Totals of all closed sockets of the process.
struct Ended {
    Word closing{0}; // sockets whose addition here has begun; equals `sockets` when none is half added
    Word sockets{0};
    Word upgraded{0};       // those of `sockets` that were upgraded
    Word path_bytes[2]{};   // received, sent; without those to and from other hosts
    Word fabric_bytes[2]{}; // by the preload library's path to other hosts
    Word kernel_bytes[2]{};
    Word calls[2]{};
    Word wakeups{0};
    Word sleeps{0};
    Word upgrades{0};
    Word returns{0};
    Word reasons[max_reasons]{};
};

struct Header {
    uint64_t magic = 0; // written last
    uint32_t version = 0;
    Library library = Library::preload;
    uint32_t row_bytes = 0;
    uint32_t rows = 0;    // capacity
    uint64_t made_ns = 0; // CLOCK_BOOTTIME
    Half rows_used{0};    // rows from here on are empty
    Half without_row{0};  // sockets that got no row
    Word sleeps{0};       // of all threads of the process, in any call
    Word slept_ns{0};
    Ended ended;
};
static_assert(sizeof(Header) <= header_bytes);
static_assert(sizeof(Row) == 192);

static_assert(sizeof(SocketRow) == 320);

constexpr size_t row_bytes_of(Library library) { return library == Library::sockets ? sizeof(SocketRow) : sizeof(Row); }
constexpr size_t page_bytes_of(Library library) { return header_bytes + size_t{max_rows} * row_bytes_of(library); }

} // namespace base::stats
