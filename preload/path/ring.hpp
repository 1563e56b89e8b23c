// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The ring of one direction of a connection in shared memory: its layout and arithmetic, without any I/O.
//
// Positions count bytes from the ring's beginning and never wrap (64 bits). A ring has areas of increasing size, and
// starts with the smallest one. When the writer finds it full, it may publish that bytes from a position on are in the
// next area; the reader follows when it has read up to there. An idle connection costs a few pages, a busy one 256 KiB.
//
// A waiter arms its wake-up id before it sleeps, then checks the ring once more; a writer or reader stores its
// position, then checks for an armed waiter. Neither misses the other, since these four (head, tail, data_wanted,
// space_wanted) are sequentially consistent.
//
// Each field has one writing process, named by its structure. The other process may run as another user and publish
// false values: each side keeps its own positions in memory of its own, and validates what it loads. False values harm
// only the stream of the side that publishes them.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace preload::path {

inline constexpr std::array<uint32_t, 3> area_sizes{8U << 10, 64U << 10, 256U << 10};
inline constexpr uint32_t areas = area_sizes.size();
inline constexpr size_t ring_bytes = size_t{area_sizes[0]} + area_sizes[1] + area_sizes[2];

// A large copy is published in pieces of this size, so that the other end follows while they are in the cache.
inline constexpr uint64_t copied_at_once = 32U << 10;

constexpr size_t area_offset(uint32_t area) {
    size_t offset = 0;
    for (uint32_t i = 0; i < area; ++i) {
        offset += area_sizes[i];
    }
    return offset;
}

// The reader's consent to bytes in the ring.
enum Consent : uint32_t {
    withheld = 0,
    given = 1, // the writer may switch to the ring
    used = 2,  // the writer has switched; the reader may not withdraw
};

// WriterFields::ends: what the writer's end is about to do. Only the kernel sees when it is done.
enum Ends : uint32_t {
    no_end = 0,
    ends_soon = 1,  // its direction is shut down, or it is closed
    ends_whole = 2, // no process reads any more: the kernel answers a frame with a reset, which loses bytes in TCP
};

// ReaderFields::request, made by the reader of a direction for its writer. The upper bits hold the epoch that it
// applies to.
enum Request : uint32_t {
    return_quietly = 0,   // end this (odd) epoch: continue by the kernel; Frame::resume may wait for the next byte
    return_to_kernel = 1, // the same, and the requester waits for Frame::resume
    halt = 2,             // end this (even) epoch: stay in the ring until requested to return
    resend = 3,           // end this (odd) epoch: send the given-back bytes, then the ring's unread ones, by the kernel
};
constexpr uint32_t request_of(uint32_t epoch, Request what) { return epoch << 2 | what; }
constexpr uint32_t requested_epoch(uint32_t request) { return request >> 2; }
constexpr bool requests(uint32_t request, uint32_t epoch, Request what) { return request == request_of(epoch, what); }
// Maximum number of switches of one direction: a request has 30 bits for the epoch.
inline constexpr uint32_t max_epoch = (1U << 30) - 8;

// WakeFields: the waiter of a direction. Greater values are the id of an eventfd that one thread or one epoll set
// sleeps on, see wait/wakeup.hpp.
enum Sleeper : uint64_t {
    nobody = 0,
    by_frame = 1, // one or more waiters: a frame wakes them all
};

struct alignas(64) WriterFields {
    std::atomic<uint64_t> head{0};    // bytes written
    std::atomic<uint64_t> grow_at{0}; // from this position on, bytes are in grow_area
    std::atomic<uint32_t> grow_area{0};
    // Even: bytes go by the kernel; odd: by the ring. Each switch adds one.
    std::atomic<uint32_t> epoch{0};
    std::atomic<uint64_t> switch_at{0}; // epoch odd: the TCP position behind the last byte that the kernel carries
    std::atomic<uint64_t> sent{0};      // bytes given to TCP, frames included
    std::atomic<uint32_t> frames{0};    // number of frames sent by TCP, see frame.hpp
    std::atomic<uint32_t> resent{0};    // the last epoch that ended by Request::resend
    std::atomic<uint32_t> resets{0};    // the end was closed with a reset, and not killed
    std::atomic<uint32_t> ends{no_end};
    std::atomic<uint32_t> wakes{0}; // the writer's process can wake by an id: see wait/wakeup.hpp
    std::atomic<uint32_t> clear{0}; // an odd epoch that has ended, whose bytes the reader must not leave in the ring
    // Behind head: up to here, bytes were written that the writer holds back (TCP_CORK, MSG_MORE). A reader that finds
    // the end of the stream reads them: the writer was killed.
    std::atomic<uint64_t> held_to{0};
};

struct alignas(64) ReaderFields {
    std::atomic<uint64_t> tail{0};  // bytes read
    std::atomic<uint32_t> epoch{0}; // the epoch that the reader has followed to
    std::atomic<uint32_t> request{0};
    std::atomic<uint64_t> received{0};   // bytes taken from TCP, frames included
    std::atomic<uint64_t> given_back{0}; // Request::resend: how many given-back bytes go first
};

struct alignas(64) WakeFields {
    std::atomic<uint32_t> consent{withheld};
    std::atomic<uint64_t> data_wanted{by_frame}; // the reader's Sleeper: woken after data is written
    std::atomic<uint64_t> space_wanted{nobody};  // the writer's: woken when there is space
};

struct Direction {
    WriterFields writer;
    ReaderFields reader;
    WakeFields wake;
};

// One side's view of the ring, in memory that the other side cannot change.
struct Cursor {
    uint64_t position = 0; // writer: head; reader: tail
    uint64_t base = 0;     // where the current area begins
    uint32_t area = 0;

    [[nodiscard]] uint32_t capacity() const { return area_sizes[area]; }
    // The offset of a position in the ring's memory.
    [[nodiscard]] size_t offset_of(uint64_t at) const {
        return area_offset(area) + static_cast<size_t>((at - base) & (capacity() - 1));
    }
    // How many bytes are contiguous from the position on, at most count.
    [[nodiscard]] size_t contiguous(uint64_t count) const {
        const uint64_t in_area = (position - base) & (capacity() - 1);
        return static_cast<size_t>(std::min<uint64_t>(count, capacity() - in_area));
    }
};

// How many bytes can be read at once; more may follow after these. False: the writer's fields are invalid.
inline bool readable(const Direction& ring, Cursor& reader, uint64_t& count) {
    const uint64_t head = ring.writer.head.load();
    count = 0;
    if (head == reader.position) {
        return true;
    }
    if (head < reader.position) {
        return false;
    }
    uint64_t limit = head;
    const uint32_t area = ring.writer.grow_area.load(std::memory_order_acquire);
    if (area != reader.area) [[unlikely]] {
        const uint64_t at = ring.writer.grow_at.load(std::memory_order_acquire);
        if (area < reader.area || area >= areas || at < reader.position) {
            return false;
        }
        if (at == reader.position) {
            reader.base = at;
            reader.area = area;
        } else {
            limit = std::min(head, at);
        }
    }
    count = limit - reader.position;
    return count <= reader.capacity();
}

// How many bytes there is space for. False: the reader's fields are invalid.
inline bool writable(const Direction& ring, const Cursor& writer, uint64_t& count) {
    const uint64_t tail = ring.reader.tail.load();
    count = 0;
    if (tail > writer.position) {
        return false;
    }
    const uint64_t used = writer.position - std::max(tail, writer.base);
    if (used > writer.capacity()) {
        return false;
    }
    count = writer.capacity() - used;
    return true;
}

// Whether there is a next area. The reader must have read a byte of the current one: only then has it followed the last
// resize, whose fields the next one overwrites.
inline bool may_grow(const Direction& ring, const Cursor& writer) {
    return writer.area + 1 < areas && (writer.area == 0 || ring.reader.tail.load() > writer.base);
}

// Continues in the next area. True: writable() returns more space now.
inline bool grow(Direction& ring, Cursor& writer) {
    if (!may_grow(ring, writer)) {
        return false;
    }
    writer.base = writer.position;
    ++writer.area;
    ring.writer.grow_at.store(writer.base, std::memory_order_release);
    ring.writer.grow_area.store(writer.area, std::memory_order_release);
    return true;
}

} // namespace preload::path
