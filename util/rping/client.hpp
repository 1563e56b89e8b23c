// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The client: one connection, one ping after the other.
#pragma once

#include "util/rping/options.hpp"

namespace rping {

// Returns the exit status. Throws a Failure if it ends early.
int run_client(const Options& options);

} // namespace rping
