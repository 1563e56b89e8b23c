// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Messages between a program's service and its worker, on a socket between both: fixed sizes, since both are of one
// build. Everything else is in the segments, see path::MirrorFields.
#pragma once

#include <cstdint>

#include "preload/connection/state.hpp"
#include "preload/rendezvous/ends.hpp"

namespace preload::fabric {

inline constexpr int control_fd = 3; // in the worker

struct Control {
    static constexpr uint64_t expected_magic = 0x74436261'46737372; // "rssFabCt"
    enum Kind : uint32_t {
        serve = 1,  // to the worker, carrying the segment and the TCP connection
        drop = 2,   // to the worker: give up the connection
        attach = 3, // from the worker: the far end's worker is connected
        failed = 4, // from the worker, instead: it is not, for the reason `why`
        ready = 5,  // from the worker, first: it has loaded libfabric, and answers at once from now on
    };
    uint64_t magic = expected_magic;
    Kind kind{};
    uint32_t direction = 0; // serve: the one that the program writes
    uint64_t token = 0;
    uint64_t service = 0; // serve: the program's
    rendezvous::Ends ends;
    uint32_t accepted = 0; // serve: the program has accepted the connection, so its worker connects the stream
    Reason why{};
};

} // namespace preload::fabric
