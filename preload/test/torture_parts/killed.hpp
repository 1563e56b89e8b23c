// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A connection of one direction, whose writer is killed: the survivor reads what was written, then the end, or a reset.
#pragma once

#include "preload/test/torture_parts/round.hpp"
#include "preload/test/torture_parts/state.hpp"

namespace torture {

void run_killed_writer(const Round& round, End& e, int fd);
void run_survivor(const Round& round, End& e, int fd);

} // namespace torture
