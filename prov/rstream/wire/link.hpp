// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The state of one end of a stream: all of the protocol and none of the I/O. The caller sends the messages that `next`
// returns, and reports arrivals. The provider uses it with a core endpoint, the tests with a queue.
//
// Threads: three sides, each for one thread at a time, which may run concurrently: posting (stage, next, undo, bypass,
// finish, abort, and all that concerns the staging ring), reading (peek, consume, and all that concerns the receive
// ring), and progress (on_data, on_control, release).
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "prov/rstream/wire/control.hpp"
#include "prov/rstream/wire/control_flow.hpp"
#include "prov/rstream/wire/growth.hpp"
#include "prov/rstream/wire/hello.hpp"
#include "prov/rstream/wire/immediate.hpp"
#include "prov/rstream/wire/maps.hpp"
#include "prov/rstream/wire/recv_flow.hpp"
#include "prov/rstream/wire/send_flow.hpp"

namespace rstream::wire {

// A message for the core. Its counters count as sent already; `undo` reverts that.
struct Post {
    enum class Kind : uint8_t {
        data,
        control,
        map,   // a control message about an iomap
        write, // to an iomap of the peer's; not announced
        skip,  // no message: the iomap of these bytes was withdrawn; they are freed after all before them
    };

    Kind kind = Kind::control;
    Chunk chunk;                   // data, write, skip: source and destination of the bytes
    Immediate immediate;           // data: announces them
    Control control;               // control: the message; data: its header, for a core without immediates
    MapMessage map;                // map: the message
    uint64_t address = 0;          // write: in the peer's memory
    uint64_t key = 0;              // write
    MapWrites::Write write_before; // write, skip: for undo

    RecvFlow::Totals granted_before;
    uint64_t reported = 0;
};

class Link {
  public:
    struct Config {
        size_t staging_size;
        size_t ring_size;
        uint64_t data_credits;
        size_t ring_limit = 0; // max size of the receive ring; 0: no resize
    };

    explicit Link(const Config& config)
        : send_(config.staging_size), recv_(config.ring_size, config.data_credits), supply_(config.ring_limit),
          data_credits_(config.data_credits) {}

    [[nodiscard]] uint64_t data_credits() const { return data_credits_; }
    [[nodiscard]] bool headers() const { return headers_; } // as passed to `open`
    // Sizes of the rings; from any side.
    [[nodiscard]] size_t staging_size() const { return send_.capacity(); }
    [[nodiscard]] size_t ring_size() const { return recv_.capacity(); }
    [[nodiscard]] size_t ring_limit() const { return supply_.limit(); } // 0: no resize

    // Opens the sending side. `headers`: data is announced by a message after the write. `max_chunk`: max bytes of one
    // write. `maps`: null unless the two ends have agreed on iomaps.
    void open(const Hello& peer, bool headers, size_t max_chunk = Immediate::max_length, Maps* maps = nullptr);

    // ---- posting side
    [[nodiscard]] size_t space() const { return writes_full() ? 0 : send_.space(); }
    [[nodiscard]] size_t unreleased() const { return send_.unreleased(); }
    [[nodiscard]] Extent free_extent(size_t length) const {
        return writes_full() ? Extent{} : send_.free_extent(length);
    }
    void stage(size_t length) { send_.stage(length); }
    // The program has more data than there is space. False if the peer's ring is full.
    bool held_up();
    // No space for more, here and at the peer.
    [[nodiscard]] bool both_full() const { return send_.both_full(); }
    // The bytes copied to a free extent are for an iomap of the peer's. `apart`: fenced, in a message without earlier
    // bytes.
    void stage_write(size_t length, const Maps::Target& target, bool apart = false);
    // As `bypass`, for an iomap.
    std::optional<Post> bypass_write(size_t length, uint64_t offset);
    [[nodiscard]] bool unposted() const { return send_.unposted(); }
    // Bytes, or the end of the stream once it was requested.
    [[nodiscard]] bool anything_unacknowledged() const {
        return send_.unposted() || send_.in_flight() != 0 || (finishing() && !all_arrived());
    }
    // A message with bytes that never enter the staging ring, if they may be sent at once.
    std::optional<Post> bypass(size_t length);
    std::optional<Post> next();
    void undo(const Post& post);
    // Where the data of the last post goes. A post of type move changes it, and so does undoing that.
    [[nodiscard]] const RemoteRing& peer_ring() const { return wish_.ring(); }
    // From here on, bytes are staged in a ring of that size: a smaller one only if nothing is staged; not during a
    // resize. `settle_staging` is true, once, when no write from the old ring is in flight.
    void move_staging(size_t size) { send_.move_staging(size); }
    [[nodiscard]] bool staging_moves() const { return send_.staging_moves(); }
    bool settle_staging() { return send_.settle_staging(); }
    void limit_chunks(size_t max_chunk) { send_.limit_chunks(std::min<size_t>(max_chunk, Immediate::max_length)); }
    // Whether `next` would return something other than data: a credit or the end. Cheap, from any side.
    [[nodiscard]] bool control_due() const;
    [[nodiscard]] bool map_due() const { return maps_ != nullptr && maps_->pending(); }
    void finish(bool closed); // fin after all staged bytes
    void abort();             // rst instead of all staged bytes
    // rst after all staged bytes: the peer reads what was sent, then learns that its own bytes were not read.
    void finish_with_reset();

    // ---- reading side
    [[nodiscard]] size_t readable() const { return recv_.readable(); }
    [[nodiscard]] uint64_t received() const { return recv_.received(); } // in all
    [[nodiscard]] Extent peek(size_t length, size_t skip = 0) const { return recv_.peek(length, skip); }
    void consume(size_t length) { recv_.consume(length); }
    void await_more() { recv_.await_more(); } // more than is readable: the peer may need credit to send it
    // The peer has requested a larger ring; from any side. `supply` offers one, of another size and within the limit.
    [[nodiscard]] bool growth_wanted() const {
        return supply_.wanted() && recv_.capacity() < supply_.limit() && !peer_finished() && !peer_reset();
    }
    // The peer can be offered a smaller ring: all that has arrived was read, and no resize is pending.
    [[nodiscard]] bool may_shrink() const {
        return peer_shrinks_ && ring_at_rest() && readable() == 0 && !peer_finished() && !peer_reset();
    }
    [[nodiscard]] bool peer_shrinks() const { return peer_shrinks_; }
    void supply(const RemoteRing& ring) { supply_.supply(ring, ring.size < recv_.capacity()); }
    // No resize is wanted, pending or in progress; from any side.
    [[nodiscard]] bool ring_at_rest() const { return supply_.vacant() && !growth_wanted(); }
    // `settle` is true when all in the old ring is read.
    [[nodiscard]] bool ring_moves() const { return recv_.moving(); }
    // True, once, when all unread bytes are in the ring supplied last: the old one is not in use, and can be released.
    bool settle() {
        if (!recv_.settle()) {
            return false;
        }
        supply_.settled();
        return true;
    }

    // ---- progress side: null, or the rule that the peer broke
    const char* on_data(uint64_t raw_immediate);
    const char* on_control(const Control& control);
    const char* on_map(const MapMessage& message);
    // A control message as received.
    const char* on_message(std::span<const std::byte> bytes);
    void release(size_t length) { send_.release(length); }

    // ---- state, from any side
    [[nodiscard]] uint64_t sent() const { return send_.sent(); } // stream bytes in all
    [[nodiscard]] bool finishing() const { return ending_.load(std::memory_order_acquire) != Ending::none; }
    [[nodiscard]] bool end_posted() const { return ending_.load(std::memory_order_acquire) == Ending::posted; }
    [[nodiscard]] bool peer_finished() const { return peer_finished_.load(std::memory_order_acquire); }
    [[nodiscard]] bool peer_closed() const { return peer_closed_.load(std::memory_order_acquire); }
    [[nodiscard]] bool peer_reset() const { return peer_reset_.load(std::memory_order_acquire); }
    // All that was sent, the end of the stream included, has arrived at the peer's end.
    [[nodiscard]] bool all_arrived() const {
        return end_posted() && send_.in_flight() == 0 &&
               control_.acknowledged() >= end_position_.load(std::memory_order_relaxed);
    }

  private:
    enum class Ending : uint8_t { none, fin, fin_closed, rst_after_data, rst, posted };

    [[nodiscard]] bool writes_full() const { return maps_ != nullptr && maps_->writes().full(); }
    std::optional<Post> urgent_control(Ending ending);
    // After the end, no resize takes place any more.
    [[nodiscard]] bool move_due(Ending ending) const {
        return wish_.move_due() && (ending == Ending::none || send_.unposted());
    }
    Post control_post(Control::Type type, uint8_t flags);
    Post offer_post();
    Post move_post();
    std::optional<Post> map_post();
    Post write_post();
    const char* on_totals(const Control& control);
    const char* on_growth(const Control& control);
    void end_is_posted(Ending kind);
    void fill(Control& control, Post& post, uint64_t most_acks);
    void announce(Post& post);

    SendFlow send_;
    RecvFlow recv_;
    ControlFlow control_;
    RingWish wish_;
    RingSupply supply_;
    uint64_t data_credits_;
    Maps* maps_ = nullptr;
    bool headers_ = false;
    bool data_acks_ = false; // the peer supports them
    bool peer_shrinks_ = false;
    std::atomic<Ending> ending_{Ending::none};
    Ending ending_before_ = Ending::none;   // for undo
    bool closed_posted_ = false;            // the posted end declared that nothing will be read either
    bool reset_posted_ = false;             // nothing may be sent after it
    std::atomic<uint64_t> end_position_{0}; // control messages sent, the end included
    std::atomic<bool> acknowledge_now_{false};
    std::atomic<bool> peer_finished_{false};
    std::atomic<bool> peer_closed_{false};
    std::atomic<bool> peer_reset_{false};
};

} // namespace rstream::wire
