// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Continues a connection by TCP that its program has closed, after the fabric has failed: in place of the program
// (connection/stream_recovery.cpp), the worker exchanges records with the far end, and sends what that has not read.
#pragma once

#include <cstdint>

#include "preload/path/record.hpp"
#include "preload/path/segment.hpp"

namespace preload::fabric {

// Whether the far kernel has still to acknowledge something that this connection has sent.
bool is_unacknowledged(int tcp);

class ClosedRecovery {
  public:
    enum class Step : uint8_t {
        reading, // call again when there is something to read
        later,   // call again after a moment
        done,    // the far end has all of it
        failed,  // the far end does not get all of it, and must be told so by a reset
    };

    // own: the direction that the program wrote, in an odd epoch. ring, before: the worker's cursor in its ring, and
    // the last one in the area before that. tcp: the connection. Segment and connection outlive this object.
    ClosedRecovery(path::Segment& segment, unsigned own, int tcp, const path::Cursor& ring, const path::Cursor& before);
    // Never waits, and reads a bounded number of bytes.
    Step step();

  private:
    bool send_record();
    Step read_until_record();
    [[nodiscard]] bool is_at_mark() const;
    bool take(const path::Record& record);
    Step send_rest();
    Step await_acknowledgement();
    bool discard();

    path::Segment& segment_;
    const unsigned own_;
    const int tcp_;
    const path::Cursor ring_;
    const path::Cursor before_;
    enum class Stage : uint8_t { sending, receiving, resending, ending } stage_ = Stage::sending;
    uint64_t head_ = 0;
    uint64_t sent_ = 0;   // position in the ring
    bool marked_ = false; // the urgent byte was sent
};

} // namespace preload::fabric
