// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Watches a round, in the first process, until it ends, hangs or fails.
#pragma once

#include <cstdint>

#include "preload/test/torture_parts/options.hpp"
#include "preload/test/torture_parts/side.hpp"

namespace torture {

// False: a hang, or a failure. It is reported, with the state of every active end. longest_pause_ms grows to the
// longest time in which an end made no progress, to within some 20 ms.
bool watch_round(const Options& options, const Side (&sides)[2], uint64_t& longest_pause_ms);

} // namespace torture
