// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// One round: the connections that exist at the same time. Ends of connection i are [2 * i], connected, and [2 * i + 1],
// accepted.
#pragma once

#include <atomic>
#include <cstdint>

#include "preload/test/torture_parts/helpers.hpp"
#include "preload/test/torture_parts/options.hpp"

namespace torture {

// What the threads of one process have in common in a round.
struct Round {
    const Options& options;
    const Helpers& helpers;
    // A connection is not upgraded while several processes hold it, so none forks before most are.
    std::atomic<uint32_t> warm{0};

    void await_all_warm() const;
};

// Resets the ends, before any process begins with them.
void prepare_round(const Options& options, uint32_t round);

} // namespace torture
