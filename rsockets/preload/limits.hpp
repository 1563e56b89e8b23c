// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Room for the descriptors that the library takes for itself. They lie beyond those that the program counts with, so
// that a new socket of the program's has the lowest number that is free, fits into an fd_set as it did, and a limit of
// RLIMIT_NOFILE is the program's alone.
#pragma once

namespace preload::limits {

// Before the library makes its first descriptor.
void make_room();
// Where its numbers begin.
int first_internal();

} // namespace preload::limits
