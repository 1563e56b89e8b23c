// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Buffer resize: a larger receive ring replaces one whose window blocks the sender, and a smaller one replaces that
// when the stream is idle. The receiver's hello declares that its ring may be resized. Growth is three messages, each
// of which is valid only after the one before it:
//
//   sender                      receiver
//   grow    ----------------->             the window was closed `stall_limit` times
//           <-----------------  offer      at any time, or never: address, key and size of a larger ring
//   move    ----------------->             data from here on goes to that ring
//
// An offer of a smaller ring needs no request, but a sender whose hello declares that it understands that. A request
// that crosses such an offer is void: the sender makes another one if the smaller ring holds it up.
//
// The receiver reads the old ring to its end, and then releases it. At most two rings exist at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "prov/rstream/wire/limits.hpp"

namespace rstream::wire {

// A ring in the peer's memory.
struct RemoteRing {
    uint64_t address = 0;
    uint64_t key = 0;
    size_t size = 0;

    friend bool operator==(const RemoteRing&, const RemoteRing&) = default;
};

// The requester, on the sending end: the peer's ring that it writes to, and when it requests a larger one. `on_offer`
// is for the progress side, the rest for the posting side.
class RingWish {
  public:
    static constexpr uint32_t stall_limit = 16;

    void open(const RemoteRing& ring, bool may_grow) {
        use(ring);
        stage_.store(may_grow ? Stage::content : Stage::never, std::memory_order_release);
    }
    [[nodiscard]] const RemoteRing& ring() const { return ring_; }

    // Bytes are staged, and the peer has given no more credit than this. Repeated reports of a stall count once.
    void on_stall(uint64_t consumed) {
        if (stalls_ < stall_limit && (stalls_ == 0 || consumed != stalled_at_)) {
            stalled_at_ = consumed;
            ++stalls_;
        }
    }

    // `ask` and `move` precede the call of the core, `unask` and `unmove` undo them. False: there is nothing to ask
    // for, or the peer has just made an offer.
    [[nodiscard]] bool ask() { return stalls_ >= stall_limit && change(Stage::content, Stage::asked); }
    void unask() { change(Stage::asked, Stage::content); } // unless the peer has sent an offer meanwhile
    [[nodiscard]] bool move_due() const { return stage() == Stage::offered; }
    void move() {
        left_ = ring_;
        use(offered_);
        stalls_ = 0;
        stage_.store(Stage::content, std::memory_order_release);
    }
    // If the peer, which has not seen the move, made another offer meanwhile, then that one stands.
    void unmove() {
        const RemoteRing moved_to = ring_;
        use(left_);
        if (change(Stage::content, Stage::busy)) {
            offered_ = moved_to;
            stage_.store(Stage::offered, std::memory_order_release);
        }
    }

    // Null, or the rule that the peer broke.
    const char* on_offer(const RemoteRing& ring) {
        const bool asked = change(Stage::asked, Stage::busy);
        if (!asked && !change(Stage::content, Stage::busy)) {
            return "an offer of a ring that was not asked for";
        }
        const char* broken = nullptr;
        const size_t size = size_.load(std::memory_order_relaxed);
        if (!asked && ring.size >= size) {
            broken = "an offer of a ring that was not asked for";
        } else if (ring.size == size || ring.size < min_buffer || ring.size > max_buffer) {
            broken = "an offer of a ring of the same size, or too small or too large";
        }
        if (broken != nullptr) {
            stage_.store(asked ? Stage::asked : Stage::content, std::memory_order_release);
            return broken;
        }
        offered_ = ring;
        stage_.store(Stage::offered, std::memory_order_release);
        return nullptr;
    }

  private:
    enum class Stage : uint8_t { never, content, asked, busy, offered }; // busy: one side changes what is offered
    [[nodiscard]] Stage stage() const { return stage_.load(std::memory_order_acquire); }
    bool change(Stage from, Stage to) { return stage_.compare_exchange_strong(from, to, std::memory_order_acq_rel); }
    void use(const RemoteRing& ring) {
        ring_ = ring;
        size_.store(ring.size, std::memory_order_relaxed);
    }

    RemoteRing ring_;
    RemoteRing left_; // by the last move
    RemoteRing offered_;
    std::atomic<size_t> size_{0}; // of the ring in use, for the progress side
    uint32_t stalls_ = 0;
    uint64_t stalled_at_ = 0;
    std::atomic<Stage> stage_{Stage::never};
};

// The responder, on the receiving end. `supply` and `settled` are for the reading side, `offer` and `unoffer` for the
// posting side, the rest for the progress side; const methods are for any thread.
class RingSupply {
  public:
    // `limit`: max size of the ring; 0: no resize.
    explicit RingSupply(size_t limit) : limit_(limit) {}
    [[nodiscard]] size_t limit() const { return limit_; }

    // A larger ring may be allocated: the peer has requested one, and no earlier resize is pending or in progress.
    [[nodiscard]] bool wanted() const { return asked_.load(std::memory_order_acquire) && vacant(); }
    // No resize is pending or in progress. (The peer may have requested a larger one than is allowed.)
    [[nodiscard]] bool vacant() const { return stage_.load(std::memory_order_acquire) == Stage::none; }
    // `smaller`: than the one in use.
    void supply(const RemoteRing& ring, bool smaller) {
        ring_ = ring;
        smaller_ = smaller;
        stage_.store(Stage::ready, std::memory_order_release);
    }
    void settled() { stage_.store(Stage::none, std::memory_order_release); }

    [[nodiscard]] bool offer_due() const { return stage_.load(std::memory_order_acquire) == Stage::ready; }
    const RemoteRing& offer() {
        asked_.store(false, std::memory_order_release);
        stage_.store(Stage::offered, std::memory_order_release);
        return ring_;
    }
    void unoffer() {
        Stage offered = Stage::offered; // unless the peer has sent a move without an offer
        stage_.compare_exchange_strong(offered, Stage::ready, std::memory_order_acq_rel);
    }

    // Null, or the rule that the peer broke.
    const char* on_grow() {
        if (limit_ == 0) {
            return "a request for a larger ring, where none may be made";
        }
        return asked_.exchange(true, std::memory_order_acq_rel) ? "two requests for a larger ring at once" : nullptr;
    }
    const char* on_move(size_t& size) {
        Stage offered = Stage::offered;
        if (!stage_.compare_exchange_strong(offered, Stage::moved, std::memory_order_acq_rel)) {
            return "a move to a ring that was not offered";
        }
        if (smaller_) {
            asked_.store(false, std::memory_order_release); // of a request that has crossed the offer
        }
        size = ring_.size;
        return nullptr;
    }

  private:
    enum class Stage : uint8_t { none, ready, offered, moved };

    size_t limit_;
    RemoteRing ring_;
    bool smaller_ = false;
    std::atomic<bool> asked_{false};
    std::atomic<Stage> stage_{Stage::none};
};

} // namespace rstream::wire
