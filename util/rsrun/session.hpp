// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Runs the program: in rsrun's place, or as its child that it waits for.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace rsrun {

// Variables for the program alone.
using Environment = std::vector<std::pair<std::string, std::string>>;

// Becomes the program. Returns only if that fails: 126 or 127, and it has said why.
int become(const std::vector<std::string>& command, const Environment& environment);

// Runs it as a child, which gets the signals that rsrun gets, and which is stopped and continued together with it. Its
// exit status, or 128 and the number of the signal that ended it. A Failure if there can be no child.
int run_child(const std::vector<std::string>& command, const Environment& environment);

} // namespace rsrun
