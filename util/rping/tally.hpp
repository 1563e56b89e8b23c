// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The data and rate of a connection, and the summary at the end.
#pragma once

#include <string>

#include "util/common/backend.hpp"
#include "util/common/histogram.hpp"
#include "util/common/json.hpp"

namespace rping {

struct Tally {
    size_t size = 0; // of a message
    uint64_t pings = 0;
    uint64_t bytes = 0;           // both directions
    util::Clock::duration time{}; // from the first ping to the last
    util::Histogram round_trips;  // in nanoseconds; client only

    [[nodiscard]] double seconds() const { return std::chrono::duration<double>(time).count(); }
};

// "10 pings of 100 bytes, 2000 bytes in all, in 0.002 s: 5000 pings/s, 1.000 MB/s"
std::string tally_line(const Tally& tally);
std::string round_trip_line(const util::Histogram& round_trips);
util::Json json_of(const Tally& tally);

} // namespace rping
