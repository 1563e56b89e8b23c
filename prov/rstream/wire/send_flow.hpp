// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The sending half of one direction: bytes wait in a staging ring, and leave it in chunks as the peer's ring and
// credits allow. After a burst that is sent at once, small sends that would each cost a message are held back and
// combined while earlier ones are unacknowledged: a request or a reply never waits, many small sends share messages.
//
// Threads: `release` and `on_credit` may run concurrently with the other methods, which are for one thread at a time;
// const methods are for any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <optional>

#include "prov/rstream/wire/atomics.hpp"
#include "prov/rstream/wire/ring.hpp"

namespace rstream::wire {

struct Chunk {
    size_t staging_offset = 0; // meaningless if it bypasses the staging ring
    size_t ring_offset = 0;    // in the peer's receive ring
    size_t length = 0;
    bool bypass = false;
    bool staging_moved = false; // the bytes are in the new buffer during a resize
    bool credit_wanted = false;
    bool held_before = false; // for undo
};

class SendFlow {
  public:
    static constexpr uint64_t burst = 16;         // small messages in flight before holding begins
    static constexpr uint64_t held_in_flight = 2; // and while holding

    static constexpr size_t small = 128; // bytes; siw's own limit is 76
    static constexpr size_t page = 4096;

    explicit SendFlow(size_t staging_size) : staging_(staging_size) {}

    // `peer_ring`, `credits`: as offered by the peer. `max_chunk`: max bytes of one message. `keep_small_in_page`: a
    // small chunk does not cross a page boundary of the staging ring.
    void open(size_t peer_ring, uint64_t credits, size_t max_chunk, bool keep_small_in_page = false);
    // From here on, chunks go to a peer ring of that size. `unmove_peer` undoes it, if no chunk was sent since.
    void move_peer(size_t peer_ring);
    void unmove_peer(size_t peer_ring);
    void limit_chunks(size_t max_chunk);

    // From here on, bytes are staged in a ring of that size: a smaller one only if it is empty. Not during a resize.
    void move_staging(size_t size);
    [[nodiscard]] bool staging_moves() const { return staging_.moving(); }
    // True, once, when no write from the old ring is in flight any more.
    bool settle_staging() { return staging_.settle(released_.load(std::memory_order_acquire)); }

    [[nodiscard]] size_t space() const {
        const size_t taken = unreleased();
        const size_t capacity = staging_.capacity();
        return capacity - std::min(taken, capacity); // another thread may have made an emptied ring smaller in between
    }
    // Staged bytes whose write is not complete.
    [[nodiscard]] size_t unreleased() const {
        const uint64_t released = released_.load(std::memory_order_acquire); // read first: it never exceeds `staged_`
        return staged_.load(std::memory_order_acquire) - released;
    }
    [[nodiscard]] bool unposted() const {
        return posted_.load(std::memory_order_relaxed) != staged_.load(std::memory_order_relaxed);
    }
    [[nodiscard]] size_t capacity() const { return staging_.capacity(); }
    [[nodiscard]] uint64_t peer_consumed() const { return peer_consumed_.load(std::memory_order_acquire); }
    // Bytes are staged, and the peer's ring has no space.
    [[nodiscard]] bool window_closed() const { return unposted() && window() == 0; }
    // There is no space, nor at the peer: most of what is staged waits for the peer, and not for the core.
    [[nodiscard]] bool both_full() const {
        const uint64_t pending = staged_.load(std::memory_order_relaxed) - posted_.load(std::memory_order_relaxed);
        return space() == 0 && 2 * pending >= capacity() && (window() == 0 || in_flight() >= credits_);
    }
    [[nodiscard]] size_t window() const { return peer_.capacity() - (sent() - std::max(peer_consumed(), peer_from_)); }

    // Where to copy the next bytes, at most `length`; then call `stage`.
    [[nodiscard]] Extent free_extent(size_t length) const {
        return staging_.extent(staged_.load(std::memory_order_relaxed), std::min(length, space()));
    }
    void stage(size_t length);

    // Drops the bytes that were staged and not posted.
    void discard() {
        staged_.store(posted_.load());
        staging_.cut(staged_.load(std::memory_order_relaxed));
    }

    // The next chunk that may be sent now, of the first `limit` bytes. `urgent`: does not hold small chunks back.
    [[nodiscard]] std::optional<Chunk> next(bool urgent, size_t limit = std::numeric_limits<size_t>::max()) const;

    // A chunk of exactly `length` bytes directly from the caller's memory, if nothing is staged before it and one
    // message can carry it.
    [[nodiscard]] std::optional<Chunk> bypass(size_t length);

    // Counts a chunk as sent: before it is given to the core, since the peer may answer before the call returns.
    void post(const Chunk& chunk);
    void unpost(const Chunk& chunk); // the core did not accept it

    // Out-of-band bytes: queued in order with those of the stream, but they use none of the peer's window or credit.
    void stage_beside(size_t length) { count_up(staged_, length); }
    [[nodiscard]] Extent next_beside(size_t length) const { return piece(std::min(length, max_chunk_)); }
    void post_beside(size_t length) { count_up(posted_, length, std::memory_order_relaxed); }
    void unpost_beside(size_t length) { count_down(posted_, length); }
    [[nodiscard]] uint64_t staged() const { return staged_.load(std::memory_order_relaxed); }
    [[nodiscard]] uint64_t posted() const { return posted_.load(std::memory_order_relaxed); }

    // Frees staging bytes whose write is complete, in order.
    void release(size_t length) { released_.fetch_add(length, std::memory_order_release); }

    // The peer's totals. False for impossible values.
    bool on_credit(uint64_t consumed, uint64_t arrived);
    // The peer has received `count` more messages. False for an impossible value.
    bool on_acknowledged(uint64_t count);

    [[nodiscard]] uint64_t in_flight() const {
        return messages_.load(std::memory_order_relaxed) - acknowledged_.load(std::memory_order_acquire);
    }
    [[nodiscard]] uint64_t sent() const { return sent_.load(std::memory_order_relaxed); }

  private:
    // While holding, an acknowledgement must be certain: every message sent meanwhile requests credit.
    [[nodiscard]] bool wants_credit(size_t length, uint64_t flying) const {
        return holding_ || (flying + 1 >= burst && length < full_chunk_);
    }
    [[nodiscard]] Extent piece(size_t length) const; // staged bytes that one message may carry

    MovingRing staging_;
    Ring peer_;
    uint64_t peer_from_ =
        0; // the peer's ring was smaller than the one before it from this position on, and empty there
    uint64_t peer_from_before_ = 0;
    uint64_t credits_ = 0;
    size_t max_chunk_ = 0;
    size_t full_chunk_ = 0; // from this size on, holding gains nothing
    bool keep_small_in_page_ = false;
    bool holding_ = false;

    std::atomic<uint64_t> staged_{0}; // staging positions
    std::atomic<uint64_t> posted_{0};
    std::atomic<uint64_t> released_{0};

    std::atomic<uint64_t> sent_{0}; // stream position
    std::atomic<uint64_t> peer_consumed_{0};
    std::atomic<uint64_t> messages_{0};
    std::atomic<uint64_t> acknowledged_{0};
};

} // namespace rstream::wire
