// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The command line. The header of main.cpp says what each option means.
#pragma once

#include <cstdint>
#include <optional>

#include <netinet/in.h>

#include "preload/test/torture_parts/state.hpp"

namespace torture {

struct Options {
    uint64_t bytes = 50000000;
    uint64_t seed = 0;
    uint32_t connections = 8;
    uint32_t rounds = 4;
    int seconds = 1000000;
    int patience_s = 15;
    uint64_t warm_up_ms = 300; // in which few bytes are sent, until the connection is upgraded
    in_addr listen{htonl(INADDR_LOOPBACK)};
    uint32_t allowed = (1U << actions) - 1; // a bit for each Action
    bool keep_hang = false;
    uint32_t pace_ms = 0;   // the longest rest of an end between its turns
    bool disturbed = false; // signals end the traffic, not a number of bytes
    bool kill_side = false; // one of the two processes is killed, and ends the traffic

    bool allows(uint32_t action) const { return (allowed >> action & 1) != 0; }
    // With that whose writer is killed, the last one.
    uint32_t per_round() const { return connections + (allows(kill_action) ? 1 : 0); }
};

// The seed is taken from the time and the process id unless --seed gives it. Prints an error and returns nothing for an
// unknown option.
std::optional<Options> parse_options(int argc, char** argv);

} // namespace torture
