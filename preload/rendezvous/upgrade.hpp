// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// This process's part of an upgrade, whichever way the services of both ends agree: what is looked at before, and the
// connection's new memory. On the service's thread.
#pragma once

#include <cstdint>

#include "preload/connection/connection.hpp"
#include "preload/rendezvous/ends.hpp"

namespace preload::rendezvous {

// A connection that is to be upgraded, as it was found.
struct Upgrade {
    Connection* connection = nullptr;
    int fd = -1;
    Ends ends;
    uid_t user = 0;      // who owns the other end
    bool remote = false; // that is on another host, and so on the fabric, if anywhere
};

struct Outcome {
    enum class Result : uint8_t { going_on, agreed, failed };
    Result result = Result::going_on;
    Reason why = Reason::none; // of a failure
    bool for_good = false;     // there is no use in another attempt
};
inline constexpr Outcome going_on{};
inline constexpr Outcome agreed{Outcome::Result::agreed};
constexpr Outcome failure(Reason why, bool for_good = false) { return {Outcome::Result::failed, why, for_good}; }

// Whether the connection may be upgraded. going_on: it may.
Outcome examine(Connection& c, Upgrade& out);
// That the other end does not answer, or not any more: perhaps since its program has closed the connection meanwhile.
Outcome unanswered(const Upgrade& upgrade);
// The segment becomes the connection's, and its next calls may switch. direction: the end's own in the segment. False:
// the connection has changed meanwhile, and the segment is still the caller's.
bool attach(const Upgrade& upgrade, path::Segment* segment, uint64_t token, unsigned direction, Reason& why);

} // namespace preload::rendezvous
