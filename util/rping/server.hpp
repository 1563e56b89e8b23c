// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The server: one client, or with -P as many as come, all at once in one thread.
#pragma once

#include "util/rping/options.hpp"

namespace rping {

// The exit status. What ends it early is a Failure.
int run_server(const Options& options);

} // namespace rping
