// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Plays the far end of a connection in this host's segment: what the program here writes there, goes out as messages,
// and what comes in as messages is written there as the far end's program has done it in its own segment. Without any
// I/O.
//
// Each field of a segment has one writing process, so that the two segments are copies of each other, each late by what
// is under way. Three things need more than a copy:
//
//     consent     The reader gives it, and the writer takes it, in one word. Here the mirror takes it for the far
//                 writer, at once, and hands it on as a grant; a reader that wants it back asks for it.
//     sleepers    Whoever sleeps, does so on this host, and the mirror wakes it; those whom only a frame by TCP wakes
//                 have it sent by the far end's program.
//     the end     Nothing may go by TCP before what is in front of it is in the far segment: an epoch that has ended,
//     and
//                 a close, are said back (State::sync).
//
// A far end that breaks the protocol harms its own connection: what it sends is checked where it could write past the
// ring, and by the program where it is read, as with shared memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "preload/fabric/message.hpp"
#include "preload/path/segment.hpp"

namespace preload::fabric {

using Bytes = std::vector<uint8_t>;

class Mirror {
  public:
    // own: the direction that this host's program writes. The segment outlives the mirror.
    Mirror(path::Segment& segment, unsigned own);
    Mirror(const Mirror&) = delete;
    Mirror& operator=(const Mirror&) = delete;
    ~Mirror();

    // Appends what there is to say, until out has that many bytes. True: something was appended.
    bool collect(Bytes& out, size_t limit);
    // A message of the far end's, of kind data, state, taken or attend. False: it makes no sense.
    bool take(const Header& header, std::span<const uint8_t> body);

    // Who is to be woken since the last call: a sleeper's id, or 0. Those whom a frame wakes are the mirror's own
    // matter.
    uint64_t data_sleeper();
    uint64_t space_sleeper();
    // The program's service is to look at the connection.
    bool attend_wanted();

    // The program's service has asked its peer to look: the far one is asked, and sleepers are woken once more.
    void attended();
    // The program wakes this id when there is something to collect. True: there is already.
    bool arm(uint64_t id);

    // The program has closed, and all that it has sent is in the far segment.
    [[nodiscard]] bool has_closed() const {
        return closing_ != 0 && static_cast<int32_t>(synced_ - closing_) >= 0; // a later one says the same
    }
    // The same, but the far end has not said that it has it.
    [[nodiscard]] bool is_closing() const { return closing_ != 0; }
    // The far end's program has closed, and all that it has sent is here: when its stream ends, nothing has failed.
    [[nodiscard]] bool far_has_closed() const { return far_.closing != 0; }

  private:
    path::Direction& out() { return segment_.direction[own_]; }
    path::Direction& in() { return segment_.direction[1 - own_]; }
    bool snapshot(State& state);
    bool collect_data(Bytes& out, size_t limit);
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
    path::Cursor read_;  // of the own ring: what was collected
    path::Cursor write_; // of the far end's ring here
    State told_;         // the last that was sent
    State far_;          // the last that has come
    uint64_t told_tail_ = 0;
    uint64_t changes_ = 0;
    uint32_t grants_ = 0;
    uint32_t withdraw_ = 0;
    uint32_t withdrawn_ = 0;
    uint32_t sync_ = 0;   // the last that was asked for
    uint32_t synced_ = 0; // the last that was said back
    uint32_t sync_epoch_ = 0;
    uint32_t closing_ = 0;     // the sync that closing waits for
    uint32_t taken_epoch_ = 0; // the request whose bytes were sent
    bool frame_wanted_ = false;
    bool attend_far_ = false;
    bool attend_here_ = false;
    bool exact_ = false; // the state is to be sent even if it hardly matters
    uint64_t data_sleeper_ = 0;
    uint64_t space_sleeper_ = 0;
    uint8_t* taken_areas_[2] = {}; // by direction
};

} // namespace preload::fabric
