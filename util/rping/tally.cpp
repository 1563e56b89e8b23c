// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/rping/tally.hpp"

#include <fmt/format.h>

namespace rping {

namespace {

double rate(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0; }
double microseconds(double nanoseconds) { return nanoseconds / 1000; }
double microseconds(uint64_t nanoseconds) { return microseconds(static_cast<double>(nanoseconds)); }

} // namespace

std::string tally_line(const Tally& tally) {
    return fmt::format("{} pings of {} bytes, {} bytes in all, in {:.3f} s: {:.0f} pings/s, {:.3f} MB/s", tally.pings,
                       tally.size, tally.bytes, tally.seconds(),
                       rate(static_cast<double>(tally.pings), tally.seconds()),
                       rate(static_cast<double>(tally.bytes) / 1e6, tally.seconds()));
}

std::string round_trip_line(const util::Histogram& r) {
    return fmt::format("round trip in us: min {:.1f}, mean {:.1f}, p50 {:.1f}, p90 {:.1f}, p99 {:.1f}, p99.9 {:.1f}, "
                       "max {:.1f}",
                       microseconds(r.min()), microseconds(r.mean()), microseconds(r.percentile(50)),
                       microseconds(r.percentile(90)), microseconds(r.percentile(99)), microseconds(r.percentile(99.9)),
                       microseconds(r.max()));
}

util::Json json_of(const Tally& tally) {
    util::Json object = {{"size", tally.size},
                         {"pings", tally.pings},
                         {"bytes", tally.bytes},
                         {"seconds", tally.seconds()},
                         {"pings_per_second", rate(static_cast<double>(tally.pings), tally.seconds())},
                         {"bytes_per_second", rate(static_cast<double>(tally.bytes), tally.seconds())}};
    const util::Histogram& r = tally.round_trips;
    if (r.count() != 0) {
        object["round_trip_us"] = {{"min", microseconds(r.min())},          {"mean", microseconds(r.mean())},
                                   {"p50", microseconds(r.percentile(50))}, {"p90", microseconds(r.percentile(90))},
                                   {"p99", microseconds(r.percentile(99))}, {"p99.9", microseconds(r.percentile(99.9))},
                                   {"max", microseconds(r.max())}};
    }
    return object;
}

} // namespace rping
