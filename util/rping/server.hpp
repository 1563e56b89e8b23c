// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The server: one client, or with -P any number, all in one thread.
#pragma once

#include "util/rping/options.hpp"

namespace rping {

// Returns the exit status. Throws a Failure if it ends early.
int run_server(const Options& options);

} // namespace rping
