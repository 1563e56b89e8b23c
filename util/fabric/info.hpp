// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What is asked of libfabric's fi_getinfo: message endpoints of a core, and addresses.
#pragma once

#include <string>

#include "util/common/address.hpp"
#include "util/fabric/fids.hpp"

namespace util {

// FI_PROVIDER may name a provider that hides the cores, rstream for example. With this flag of fi_getinfo they are all
// there; libfabric's own layered providers use it.
constexpr uint64_t cores_only = uint64_t{1} << 60;

// For endpoints of this provider that this package can drive, with addresses of this family.
Info make_hints(const std::string& provider, int family);

// As resolve_address, but asks libfabric: its verbs provider, then tcp. passive: for an address of our own.
Address resolve_on_fabric(const std::string& option, const std::string& node, uint16_t port, AddressFormat format,
                          int family, bool passive);

} // namespace util
