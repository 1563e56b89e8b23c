// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Watches a round, in the first process, until it ends, hangs or fails.
#pragma once

#include "preload/test/torture_parts/options.hpp"
#include "preload/test/torture_parts/side.hpp"

namespace torture {

// False: a hang, or a failure. It is reported, with the state of every active end.
bool watch_round(const Options& options, const Side (&sides)[2]);

} // namespace torture
