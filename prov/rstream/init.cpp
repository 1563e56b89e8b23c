// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The entry point for libfabric: the one exported symbol of the plugin. rdma/providers/fi_prov.h.
#include "prov/rstream/fabric.hpp"
#include "prov/rstream/info.hpp"
#include "prov/rstream/log.hpp"
#include "prov/rstream/params.hpp"

namespace rstream {

fi_provider provider = {
    .version = FI_VERSION(0, 1),
    // libfabric skips a provider whose API is older than the version that the program requests.
    .fi_version = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION),
    .context = {},
    .name = "rstream",
    .getinfo = getinfo,
    .fabric = [](fi_fabric_attr* attr, fid_fabric** fabric, void* context) -> int {
        return attr == nullptr || fabric == nullptr ? -FI_EINVAL
                                                    : guarded([&] { return Fabric::open(*attr, context, fabric); });
    },
    .cleanup = [] {},
};

} // namespace rstream

extern "C" __attribute__((visibility("default"))) fi_provider* fi_prov_ini();

fi_provider* fi_prov_ini() {
    rstream::guarded([] {
        rstream::Params::define();
        return 0;
    });
    return &rstream::provider;
}
