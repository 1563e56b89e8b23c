// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Calls of fi_getinfo: for message endpoints of a core, and for addresses.
#pragma once

#include <string>

#include "util/common/address.hpp"
#include "util/fabric/fids.hpp"

namespace util {

// FI_PROVIDER may name a provider that hides the cores, rstream for example. With this flag fi_getinfo returns all of
// them; libfabric's own layered providers use it.
constexpr uint64_t cores_only = uint64_t{1} << 60;

// Hints for endpoints of this provider that this package supports, with addresses of this family.
Info make_hints(const std::string& provider, int family);

// As resolve_address, but through libfabric: its verbs provider, then tcp. passive: for a local address.
Address resolve_on_fabric(const std::string& option, const std::string& node, uint16_t port, AddressFormat format,
                          int family, bool passive);

} // namespace util
