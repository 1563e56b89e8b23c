// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The environment as it was when the program began: it may change its own, or write over it.
#pragma once

namespace preload::settings {

// Null where a variable is not set, or empty.
const char* library(); // RSPRELOAD_LIBRARY
const char* log();     // RSPRELOAD_LOG
const char* explain(); // RSPRELOAD_EXPLAIN

// RSPRELOAD_EXPLAIN_KERNEL=1, which this library's own tests set: a record for each socket of the kernel's too.
// Otherwise librspreload-ofi tells of those.
bool explain_kernel();

} // namespace preload::settings
