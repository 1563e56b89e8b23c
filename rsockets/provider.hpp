// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The way to the provider. libfabric finds it in its provider folder or in FI_PROVIDER_PATH; if it does not, or if
// FI_PROVIDER names others only, the plugin is taken from where this library was installed with it, without a change of
// the environment, which would be everyone's.
#pragma once

#include "base/owned_fid.hpp"

namespace rsockets::provider {

// An empty request for stream endpoints. Null for want of memory.
base::Info hints();

// As fi_getinfo and fi_fabric: 0 or -FI_E*. An answer has the source port of the request.
int get_info(const fi_info& hints, base::Info& out);
int open_fabric(fi_fabric_attr& attr, base::Owned<fid_fabric>& out);

// In host order; does nothing to an info without a source address.
void set_source_port(fi_info& info, uint16_t port);

} // namespace rsockets::provider
