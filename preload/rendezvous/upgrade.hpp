// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// This process's part of an upgrade, however the services of both ends agree: the checks before it, and the
// connection's new memory. On the service's thread.
#pragma once

#include <cstdint>

#include "preload/connection/connection.hpp"
#include "preload/rendezvous/ends.hpp"

namespace preload::rendezvous {

// A connection to upgrade, as examine() found it.
struct Upgrade {
    Connection* connection = nullptr;
    int fd = -1;
    Ends ends;
    uid_t user = 0;      // owner of the other end
    bool remote = false; // the other end is on another host: only the fabric can reach it
};

struct Outcome {
    enum class Result : uint8_t { going_on, agreed, failed };
    Result result = Result::going_on;
    Reason why = Reason::none; // of a failure
    bool for_good = false;     // another attempt is useless
};
inline constexpr Outcome going_on{};
inline constexpr Outcome agreed{Outcome::Result::agreed};
constexpr Outcome failure(Reason why, bool for_good = false) { return {Outcome::Result::failed, why, for_good}; }

// Whether the connection may be upgraded. going_on: it may.
Outcome examine(Connection& c, Upgrade& out);
// The failure if the peer does not answer, or no longer: perhaps its program has closed the connection meanwhile.
Outcome unanswered(const Upgrade& upgrade);
// The connection takes ownership of the segment, and its next calls may switch. direction: the index of this end's own
// direction. False: the connection has changed meanwhile, and the segment stays the caller's.
bool attach(const Upgrade& upgrade, path::Segment* segment, uint64_t token, unsigned direction, Reason& why);

} // namespace preload::rendezvous
