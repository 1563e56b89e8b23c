// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The environment at program start: the program may change its own, or overwrite it.
#pragma once

#include <cstdint>

namespace preload::settings {

const char* explain(); // RSPRELOAD_EXPLAIN, or null
const char* program(); // the base name of the program's file
// RSPRELOAD_UPGRADE: never, or after how many calls (default 8), or test:N:PERMILLE.
const char* upgrade(); // or null
// RSPRELOAD_STDIO=unused: the program moves no bytes of its descriptors 0, 1 and 2 by stdio.
bool stdio_is_unused();
bool fabric_is_allowed();    // RSPRELOAD_FABRIC
const char* fabric_worker(); // RSPRELOAD_FABRIC_WORKER

} // namespace preload::settings
