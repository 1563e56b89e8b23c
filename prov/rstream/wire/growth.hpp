// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A larger receive ring in place of one whose window holds the sender up. The receiver's hello says that its ring may
// grow; the rest is three messages, each of which may only come in answer to the one before it:
//
//   sender                      receiver
//   grow    ----------------->             the window was closed `patience` times
//           <-----------------  offer      at leisure, or never: address, key and size of a larger ring
//   move    ----------------->             what follows goes there
//
// The receiver reads the old ring to its end, and is then done with it. At most two rings exist at a time.
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

// The sender's part: whose ring it writes to, and when it asks for a larger one. `on_offer` on the progress side, the
// rest on the posting side.
class RingWish {
  public:
    static constexpr uint32_t patience = 16;

    void open(const RemoteRing& ring, bool may_grow) {
        ring_ = ring;
        stage_.store(may_grow ? Stage::content : Stage::never, std::memory_order_release);
    }
    [[nodiscard]] const RemoteRing& ring() const { return ring_; }

    // Bytes wait, and the peer has given no more credit than this. A stall counts once, however often it is looked at.
    void on_stall(uint64_t consumed) {
        if (stalls_ < patience && (stalls_ == 0 || consumed != stalled_at_)) {
            stalled_at_ = consumed;
            ++stalls_;
        }
    }

    // `ask` and `move` come before the message is given to the core, the others undo them.
    [[nodiscard]] bool ask_due() const { return stalls_ >= patience && stage() == Stage::content; }
    void ask() { stage_.store(Stage::asked, std::memory_order_release); }
    void unask() {
        Stage asked = Stage::asked; // or a peer that guesses has answered meanwhile
        stage_.compare_exchange_strong(asked, Stage::content, std::memory_order_acq_rel);
    }
    [[nodiscard]] bool move_due() const { return stage() == Stage::offered; }
    void move() {
        std::swap(ring_, offered_);
        stalls_ = 0;
        stage_.store(Stage::content, std::memory_order_release);
    }
    void unmove() {
        std::swap(ring_, offered_);
        stage_.store(Stage::offered, std::memory_order_release);
    }

    // Null, or the rule that the peer broke.
    const char* on_offer(const RemoteRing& ring) {
        if (stage() != Stage::asked) {
            return "an offer of a ring that was not asked for";
        }
        if (ring.size <= ring_.size || ring.size > max_buffer) {
            return "an offer of a ring that is no larger, or too large";
        }
        offered_ = ring;
        stage_.store(Stage::offered, std::memory_order_release);
        return nullptr;
    }

  private:
    enum class Stage : uint8_t { never, content, asked, offered };
    [[nodiscard]] Stage stage() const { return stage_.load(std::memory_order_acquire); }

    RemoteRing ring_;
    RemoteRing offered_;
    uint32_t stalls_ = 0;
    uint64_t stalled_at_ = 0;
    std::atomic<Stage> stage_{Stage::never};
};

// The receiver's part. `supply` and `settled` on the reading side, `offer` and `unoffer` on the posting side, the rest
// on the progress side; what is const may be asked by any.
class RingSupply {
  public:
    // The ring may grow up to `limit`; 0: it may not.
    explicit RingSupply(size_t limit) : limit_(limit) {}
    [[nodiscard]] size_t limit() const { return limit_; }

    // A ring may be made: the peer waits for one, and there is no other that is not in use yet, or still in use.
    [[nodiscard]] bool wanted() const {
        return asked_.load(std::memory_order_acquire) && stage_.load(std::memory_order_acquire) == Stage::none;
    }
    void supply(const RemoteRing& ring) {
        ring_ = ring;
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
        Stage offered = Stage::offered; // or a peer that guesses has moved meanwhile
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
        size = ring_.size;
        return nullptr;
    }

  private:
    enum class Stage : uint8_t { none, ready, offered, moved };

    size_t limit_;
    RemoteRing ring_;
    std::atomic<bool> asked_{false};
    std::atomic<Stage> stage_{Stage::none};
};

} // namespace rstream::wire
