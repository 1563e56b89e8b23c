// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Host names in the rules of --only. The preload library resolves names by /etc/hosts alone; rsrun queries the resolver
// before the program starts, and passes addresses.
#pragma once

#include <string>
#include <vector>

namespace rsrun {

// The rule itself if it names no host, or localhost, which the library resolves; otherwise one rule for each address of
// the host. Throws a Failure that names the option and the host that cannot be resolved. The rule must be valid.
std::vector<std::string> resolve_rule(const std::string& rule);

} // namespace rsrun
