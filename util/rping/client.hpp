// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The client: one connection, pings one after the other.
#pragma once

#include "util/rping/options.hpp"

namespace rping {

// The exit status. What ends it early is a Failure.
int run_client(const Options& options);

} // namespace rping
