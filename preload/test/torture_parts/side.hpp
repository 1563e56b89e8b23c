// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The two processes that the connections are between: one connects, one accepts. Each has a pipe in either direction: a
// byte from the first process begins a round, one back ends it.
#pragma once

#include <cstdint>

#include <sys/types.h>

#include "preload/test/torture_parts/options.hpp"

namespace torture {

struct Side {
    pid_t pid;
    int to;
    int from;
};

// 0: connects, 1: accepts.
Side start_side(const Options& options, uint32_t side);

} // namespace torture
