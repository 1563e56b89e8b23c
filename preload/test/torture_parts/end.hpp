// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// One end of a connection, as a thread: it takes turns, one random action each, until its bytes are through, and closes
// the connection as its plan says.
#pragma once

#include "preload/test/torture_parts/round.hpp"
#include "preload/test/torture_parts/state.hpp"

namespace torture {

void run_end(Round& round, End& e, int fd);

} // namespace torture
