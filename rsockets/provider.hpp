// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Access to the provider. libfabric finds it in its provider folder or in FI_PROVIDER_PATH. If it does not, or if
// FI_PROVIDER names others only, the plugin is loaded from where it was installed with this library. That leaves the
// environment unchanged, which the whole process shares.
#pragma once

#include "base/owned_fid.hpp"

namespace rsockets::provider {

// Hints that request stream endpoints. Null if out of memory.
base::Info hints();

// As fi_getinfo and fi_fabric: 0 or -FI_E*. The result has the source port of the hints.
int get_info(const fi_info& hints, base::Info& out);
int open_fabric(fi_fabric_attr& attr, base::Owned<fid_fabric>& out);

// `port` is in host order. No effect on an info without a source address.
void set_source_port(fi_info& info, uint16_t port);

} // namespace rsockets::provider
