// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Host names in the rules of --only. The preload library looks names up in /etc/hosts alone; rsrun asks the resolver
// before the program starts, and hands over addresses.
#pragma once

#include <string>
#include <vector>

namespace rsrun {

// The rule itself if it names no host, or localhost, which the library knows; otherwise one rule for each address of
// the host. A Failure names the option and the host that cannot be resolved. The rule is one that can be read.
std::vector<std::string> resolve_rule(const std::string& rule);

} // namespace rsrun
