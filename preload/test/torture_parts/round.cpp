// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Sets up the ends of a round.
#include "preload/test/torture_parts/round.hpp"

#include <algorithm>
#include <new>

#include <pthread.h>
#include <unistd.h>

namespace torture {

void Round::await_all_warm() const {
    while (warm < options.connections) {
        usleep(options.pace_ms != 0 ? 20000 : 500);
    }
}

void prepare_round(const Options& options, uint32_t round) {
    for (uint32_t i = 0; i < options.per_round(); ++i) {
        const bool killed = i >= options.connections;
        for (uint32_t side = 0; side < 2; ++side) {
            End& e = *new (&shared->ends[2 * i + side]) End;
            e.id = round * 1000 + i;
            e.side = side;
            e.plan = (round + i) % 4;
            const uint64_t each = options.disturbed || options.kill_side
                                      ? endless
                                      : std::max<uint64_t>(options.bytes / options.rounds / options.connections / 2, 1);
            e.total_out = killed ? (side == 1 ? UINT64_MAX : 0) : each;
            e.total_in = killed ? (side == 0 ? UINT64_MAX : 0) : each;
            e.key_out = options.seed * 31 + e.id * 2 + side;
            e.key_in = options.seed * 31 + e.id * 2 + (1 - side);
            pthread_mutexattr_t attributes;
            pthread_mutexattr_init(&attributes);
            pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
            pthread_mutex_init(&e.read_turn, &attributes);
            pthread_mutex_init(&e.write_turn, &attributes);
            e.active = true;
        }
    }
}

} // namespace torture
