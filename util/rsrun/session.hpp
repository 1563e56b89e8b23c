// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Runs the program: by exec in place of rsrun, or as a child that rsrun waits for.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace rsrun {

// Environment variables for the program only.
using Environment = std::vector<std::pair<std::string, std::string>>;

// Executes the program. Returns only on failure: 126 or 127, after printing the reason.
int become(const std::vector<std::string>& command, const Environment& environment);

// Runs it as a child. The child gets the signals that rsrun gets, and is stopped and continued together with rsrun.
// Returns its exit status, or 128 plus the number of the signal that ended it. Throws a Failure if no child can be
// created.
int run_child(const std::vector<std::string>& command, const Environment& environment);

} // namespace rsrun
