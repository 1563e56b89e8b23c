// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Ways of waiting: moves bytes of one end, in both directions, by poll, select, epoll, edge-triggered epoll or blocking
// calls in two threads. Both directions are always read and written, so that a connection stands still only if
// something is wrong.
#pragma once

#include <cstdint>

#include <sys/socket.h>

#include "preload/test/torture_parts/random.hpp"
#include "preload/test/torture_parts/state.hpp"
#include "preload/test/torture_parts/stream.hpp"

namespace torture {

// Positions at which an end's turn is over.
struct Targets {
    uint64_t out;
    uint64_t in;
};

// As much is written; once all is written, as much is read.
Targets targets_of(const End& e, uint64_t quota);
bool reached(const End& e, const Targets& t);

void drive(End& e, int fd, uint64_t quota, uint32_t style, Random& random);

void set_nonblocking(int fd, bool on);
void set_receive_limit(int fd, int milliseconds);

// Sleeps until there is something to do. `set` is the epoll set of an end that has one, or -1.
void wait_for(End& e, int fd, int set, uint32_t style, bool for_in, bool for_out);

// Reads until `enough` says so, or until all is read.
template <class Enough> void read_blocking(End& e, int fd, Random& random, Enough&& enough) {
    set_receive_limit(fd, 10);
    while (!enough() && e.in < e.total_in) {
        check(e, read_some(e, fd, random, random.below(8) == 0 ? MSG_WAITALL : 0), "reading");
    }
    set_receive_limit(fd, 0);
}

} // namespace torture
