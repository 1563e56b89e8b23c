// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The memory file of one connection: a ring for each direction. It has no name, is sealed against resizing, and no
// descriptor of it stays open once both ends have mapped it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include <sys/types.h>

#include "preload/path/ring.hpp"

namespace preload::path {

inline constexpr uint64_t segment_magic = 0x33676573'70727372; // "rsrpseg3"

// For a connection whose far end is on another host: the segment is this host's alone. A process beside the program,
// the worker (fabric/), plays the far end in it: it does here what the far end's program does in the far segment.
// It and the program also communicate through these fields.
struct alignas(64) MirrorFields {
    enum Stage : uint32_t {
        proving = 0, // the ring must still be empty
        proved = 1,  // to this end, and possibly to the far end
        moving = 2,
        lost = 3,   // the fabric has failed; either side sets it, and the worker detaches
        ended = 4,  // the far end has ended; all that it sent is in the ring
        failed = 5, // it was never proved
    };
    enum Closed : uint32_t {
        open = 0,
        closed_by_last = 1, // by the last process that had it
        aborted = 2,        // the same, with a reset
        left = 3,           // only the kernel uses it now
    };
    // From the worker:
    std::atomic<uint32_t> stage{proving};
    // Number of an urgent byte to send, from 1, and the byte: see urgent_of(). The program sets urgent_claimed before
    // it sends that, so that the worker knows whether it still can: see withdraw_urgent().
    std::atomic<uint32_t> urgent_to_send{0};
    std::atomic<uint32_t> asked{0};      // the far end's service requests attention of this end's
    std::atomic<uint32_t> frames{0};     // not 0: a waiter at the far end can only be woken by a TCP frame
    std::atomic<uint32_t> far_closed{0}; // no waiter is left at the far end
    std::atomic<uint32_t> applied{0};    // the last epoch of the own direction that is complete in the far segment
    // From the program:
    std::atomic<uint64_t> changes{0};         // counts changes that the worker must process
    std::atomic<uint64_t> sleeper{0};         // the worker's armed wake-up id, taken by the thread that wakes it
    std::atomic<uint32_t> urgent_sent{0};     // the last `urgent_to_send` that was sent
    std::atomic<uint32_t> urgent_received{0}; // the far end's last urgent byte, encoded likewise
    std::atomic<uint32_t> withdraw{0};   // the reader withdraws its consent, or stays with TCP before the proof ends
    std::atomic<uint32_t> closed{open};  // a value of Closed
    std::atomic<uint32_t> recovering{0}; // it has sent its record, and continues by TCP
    std::atomic<uint32_t> shared{0};     // 0: one process has it; else `several`, or a value of last_leaves()

    // Several processes have had it: only the kernel sees when the last one has ended.
    static constexpr uint32_t several = 1;
    // The same, and the last one that is known of is about to end, or to execute another program.
    static constexpr uint32_t last_leaves(pid_t process) { return static_cast<uint32_t>(process) << 1 | several; }
    static constexpr pid_t last_leaving(uint32_t shared) { return static_cast<pid_t>(shared >> 1); } // 0: none

    static constexpr uint32_t urgent_bytes = 4; // sent by each end for the proof
    static constexpr uint32_t urgent_of(uint32_t number, uint8_t byte) { return number << 8 | byte; }
    static constexpr uint32_t urgent_claimed = 1U << 31;
    [[nodiscard]] bool has_urgent_to_send() const {
        return (urgent_to_send.load() & ~urgent_claimed) != urgent_sent.load();
    }
    // By the worker: no further one is sent. Returns how many were; none: the program is sending one just now.
    std::optional<uint32_t> withdraw_urgent() {
        uint32_t wanted = urgent_to_send.load();
        while (has_urgent_to_send()) {
            if ((wanted & urgent_claimed) != 0) {
                return std::nullopt;
            }
            urgent_to_send.compare_exchange_strong(wanted, urgent_sent.load());
        }
        return urgent_sent.load() >> 8;
    }
};

struct Segment {
    uint64_t magic = segment_magic;
    uint64_t token = 0; // identifies the connection in messages between the services of both ends
    // The service of the process at each end, as service_address() takes it; of the last process that used the end.
    std::atomic<uint64_t> service[2]{};
    // Requests that service to attend to the connection, even if its inbox is full.
    std::atomic<uint32_t> asked[2]{};
    MirrorFields mirror;
    Direction direction[2]; // [0]: written by the first end (see rendezvous/ends.hpp), [1]: by the second
};

extern Segment no_segment; // replaces one that was unmapped

inline constexpr size_t page = 4096;
inline constexpr size_t rings_offset = page;
static_assert(sizeof(Segment) <= rings_offset);
inline constexpr size_t segment_bytes = rings_offset + 2 * ring_bytes;
static_assert(segment_bytes % page == 0);
// Behind the rings: bytes that the reader of a direction has taken from TCP and gives back to the writer. Mapped and
// filled only when a connection is handed over to a holder that does not use the ring.
inline constexpr size_t give_back_bytes = size_t{8} << 20;
inline constexpr size_t file_bytes = segment_bytes + 2 * give_back_bytes;

inline uint8_t* ring_memory(Segment* segment, unsigned direction) {
    return reinterpret_cast<uint8_t*>(segment) + rings_offset + direction * ring_bytes;
}

// Makes an empty memory file for a segment, close-on-exec. Negative: it failed.
int open_memory();
// Lays it out and maps it; fd stays the caller's, and may be negative. Null: no memory.
Segment* make_segment(uint64_t token, int fd);
// Maps a file from a peer, after checks of its kind, seals and size. Null: `why` says what is wrong with it.
Segment* map_segment(int fd, const char*& why);
void unmap_segment(Segment* segment);
// Maps the area in which the reader of a direction gives bytes back. Null: no memory.
uint8_t* map_give_back(Segment* segment, unsigned direction);
void unmap_give_back(uint8_t* area);
// Allocates the pages of an area, so that touching them cannot raise SIGBUS. False: no memory.
bool populate(Segment* segment, unsigned direction, uint32_t area);

} // namespace preload::path
