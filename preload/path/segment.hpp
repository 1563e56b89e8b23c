// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The memory file of one connection: a ring for each direction. It has no name, is sealed against resizing, and no
// descriptor of it stays open once both ends have mapped it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "preload/path/ring.hpp"

namespace preload::path {

inline constexpr uint64_t segment_magic = 0x32676573'70727372; // "rsrpseg2"

// Of a connection whose far end is on another host: the segment is this host's alone, and a process beside the program,
// the worker (fabric/), plays the far end in it: it does there what the far end's program does in the far segment. This
// is what it and the program say to each other besides.
struct alignas(64) MirrorFields {
    enum Stage : uint32_t {
        proving = 0, // nothing may be in the ring yet
        proved = 1,  // to this end; to the far end as well, perhaps
        moving = 2,
        lost = 3,   // the fabric has failed; whichever of the two says so, the worker lets go
        ended = 4,  // the far end has ended; all that it has sent is in the ring
        failed = 5, // it was never proved
    };
    // Of the worker's:
    std::atomic<uint32_t> stage{proving};
    std::atomic<uint32_t> say{0};        // the number of an urgent byte, from 1, and the byte: see say_of()
    std::atomic<uint32_t> asked{0};      // the far end's service asks this one's to look
    std::atomic<uint32_t> frames{0};     // not 0: somebody sleeps at the far end whom only a frame by TCP wakes
    std::atomic<uint32_t> far_closed{0}; // nobody is there any more who could sleep
    std::atomic<uint32_t> applied{0};    // the last epoch of the own direction that the far segment has all of
    // The program's:
    std::atomic<uint64_t> changes{0};  // counts what the worker is to look at
    std::atomic<uint64_t> sleeper{0};  // the worker's wake-up id, taken by who wakes it
    std::atomic<uint32_t> said{0};     // the last `say` that was sent
    std::atomic<uint32_t> heard{0};    // the far end's last urgent byte, likewise
    std::atomic<uint32_t> withdraw{0}; // the reader takes its consent back
    std::atomic<uint32_t> closed{0}; // by the last process that had it; 2: with a reset; 3: it is only the kernel's now
    std::atomic<uint32_t> shared{0}; // several processes have had it: only the kernel knows when the last one has ended

    static constexpr uint32_t left = 3;         // of `closed`
    static constexpr uint32_t urgent_bytes = 4; // that each end sends for the proof
    static constexpr uint32_t say_of(uint32_t number, uint8_t byte) { return number << 8 | byte; }
};

struct Segment {
    uint64_t magic = segment_magic;
    uint64_t token = 0; // names the connection in messages between the services of both ends
    // The service of the process at each end, as service_address() takes it; of the last one that used the end.
    std::atomic<uint64_t> service[2]{};
    // That service is to look at the connection: for when its inbox is too full to be told.
    std::atomic<uint32_t> asked[2]{};
    MirrorFields mirror;
    Direction direction[2]; // [0]: written by the first end (see rendezvous/name.hpp), [1]: by the second
};

extern Segment no_segment; // in place of one that was unmapped

inline constexpr size_t page = 4096;
inline constexpr size_t rings_offset = page;
static_assert(sizeof(Segment) <= rings_offset);
inline constexpr size_t segment_bytes = rings_offset + 2 * ring_bytes;
static_assert(segment_bytes % page == 0);
// Behind the rings: what the reader of a direction has taken from TCP, and gives back to the writer. Only mapped, and
// only filled, where a connection is handed over to somebody who does not know of the ring.
inline constexpr size_t give_back_bytes = size_t{8} << 20;
inline constexpr size_t file_bytes = segment_bytes + 2 * give_back_bytes;

inline uint8_t* ring_memory(Segment* segment, unsigned direction) {
    return reinterpret_cast<uint8_t*>(segment) + rings_offset + direction * ring_bytes;
}

// An empty memory file for a segment, close-on-exec; negative: there is none.
int open_memory();
// Lays it out and maps it; fd stays the caller's, and may be negative. Null: there is no memory.
Segment* make_segment(uint64_t token, int fd);
// Maps what a peer has sent, after checks of its kind, seals and size. Null: why says what is wrong with it.
Segment* map_segment(int fd, const char*& why);
void unmap_segment(Segment* segment);
// The area that the reader of a direction gives back in. Null: there is no memory.
uint8_t* map_give_back(Segment* segment, unsigned direction);
void unmap_give_back(uint8_t* area);
// Whether the pages of an area can be had, so that touching them cannot raise SIGBUS.
bool populate(Segment* segment, unsigned direction, uint32_t area);

} // namespace preload::path
