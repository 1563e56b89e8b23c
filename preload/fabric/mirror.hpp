// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Plays the far end of a connection in this host's segment: what the program writes there is sent as messages, and what
// arrives as messages is written there, as the far end's program did in its own segment. No I/O.
//
// Each field of a segment has one writing process, so the two segments are copies of each other, delayed by what is in
// flight. Three things need more than a copy:
//
//     consent     The reader gives it, and the writer takes it, in one word. Here the mirror takes it for the far
//                 writer, at once, and forwards it as a grant; a reader that withdraws it requests it back.
//     waiters     The mirror wakes waiters on this host; for those that only a TCP frame can wake, the far end's
//                 program sends it.
//     EOF         Nothing may go by TCP before the bytes in front of it are in the far segment: the end of an epoch,
//                 and a close, are echoed (State::sync).
//
// A far end that violates the protocol harms only its own connection: the mirror checks what could write past the ring,
// and the program what it reads, as with shared memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/uninitialized.hpp"
#include "preload/fabric/message.hpp"
#include "preload/path/segment.hpp"

namespace preload::fabric {

using Bytes = std::vector<uint8_t, base::Uninitialized<uint8_t>>;

class Mirror {
  public:
    // own: the direction that this host's program writes. The segment outlives the mirror.
    Mirror(path::Segment& segment, unsigned own);
    Mirror(const Mirror&) = delete;
    Mirror& operator=(const Mirror&) = delete;
    ~Mirror();

    // Appends pending messages, until out has `limit` bytes. True: something was appended.
    bool collect(Bytes& out, size_t limit);
    // Applies a message from the far end, of kind data, state, taken or attend. False: it is invalid.
    bool take(const Header& header, std::span<const uint8_t> body);

    // The id of a waiter to wake since the last call, or 0. The mirror itself handles waiters that need a frame.
    uint64_t data_sleeper();
    uint64_t space_sleeper();
    // Whether the program's service must attend to the connection.
    bool attend_wanted();

    // The program's service has requested attention from its peer: forwards that to the far end, and wakes waiters once
    // more.
    void attended();
    // Arms this id: the program wakes it when there is something to collect. True: there is already.
    bool arm(uint64_t id);

    // The program has closed, and all that it has sent is in the far segment.
    [[nodiscard]] bool has_closed() const {
        return closing_ != 0 && static_cast<int32_t>(synced_ - closing_) >= 0; // a later one implies it
    }
    // The program has closed, but the far end may not have confirmed yet that it has everything.
    [[nodiscard]] bool is_closing() const { return closing_ != 0; }
    // The far end's program has closed, and all that it has sent is here: EOF of its stream is not a failure.
    [[nodiscard]] bool far_has_closed() const { return far_.closing != 0; }
    // After the last collect(): the end of what the program has written to its ring, and the last position in the area
    // before that. The far end has not read more than these two areas.
    struct EndOfRing {
        path::Cursor end;
        path::Cursor before;
    };
    EndOfRing end_of_ring();

  private:
    path::Direction& out() { return segment_.direction[own_]; }
    path::Direction& in() { return segment_.direction[1 - own_]; }
    bool snapshot(State& state);
    bool collect_data(Bytes& out, size_t limit);
    bool next(uint64_t& count);
    void collect_taken(Bytes& out, const State& state);
    void append(Bytes& out, Kind kind, const void* body, size_t bytes, uint64_t position = 0, uint32_t area = 0);
    [[nodiscard]] bool is_news(const State& state) const;
    void take_grant();
    bool take_data(const Header& header, std::span<const uint8_t> body);
    bool take_state(const State& state);
    bool take_taken(const Header& header, std::span<const uint8_t> body);
    void take_tail(uint64_t tail);
    void wake_for_data();
    void wake_for_space();

    path::Segment& segment_;
    const unsigned own_;
    path::Cursor read_;        // of the own ring: what was collected
    path::Cursor read_before_; // the last position in the area before
    path::Cursor write_;       // of the far end's ring here
    State sent_;               // the last that was sent
    State far_;                // the last that was received
    uint64_t reported_tail_ = 0;
    uint64_t changes_ = 0;
    uint32_t grants_ = 0;
    uint32_t withdraw_ = 0;
    uint32_t withdrawn_ = 0;
    uint32_t sync_ = 0;   // the last that was requested
    uint32_t synced_ = 0; // the last that was echoed
    uint32_t sync_epoch_ = 0;
    uint32_t closing_ = 0;     // the sync that closing waits for
    uint32_t taken_epoch_ = 0; // the request whose bytes were sent
    bool frame_wanted_ = false;
    bool attend_far_ = false;
    bool attend_here_ = false;
    bool exact_ = false; // send the state even if it has hardly changed
    uint64_t data_sleeper_ = 0;
    uint64_t space_sleeper_ = 0;
    uint8_t* taken_areas_[2] = {}; // by direction
};

} // namespace preload::fabric
