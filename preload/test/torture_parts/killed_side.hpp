// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// One of the two processes is killed while bytes go both ways on all connections. Each end of the other process reads
// what the killed one has written, then the end, or a reset, as with kernel TCP: a process that is killed with bytes
// unread resets its connections, and what its kernel had not sent is lost.
#pragma once

#include <cstdint>
#include <vector>

#include "preload/test/torture_parts/options.hpp"
#include "preload/test/torture_parts/random.hpp"
#include "preload/test/torture_parts/side.hpp"
#include "preload/test/torture_parts/state.hpp"

namespace torture {

// In the first process.
class KilledSide {
  public:
    explicit KilledSide(const Options& options);

    // Once all connections are under way: kills one side when its time has come, and waits until it is gone. `since`:
    // when each end made its last progress. Returns the number of the side, once.
    int look(const std::vector<uint64_t>& since, const Side (&sides)[2]);
    // A line for each connection: whether it was on the fabric path or in shared memory when it was hit, and how it
    // ended.
    void report() const;

  private:
    uint32_t connections_;
    uint32_t side_;
    uint64_t delay_ms_;
    uint64_t begun_ms_ = 0;
    uint64_t killed_ms_ = 0;
    std::vector<bool> hit_;
};

// In the surviving process: the last bytes of an end whose peer is gone, as a call has said by `error` (0: the end).
void finish_survivor(End& e, int fd, int error, Random& random);

} // namespace torture
