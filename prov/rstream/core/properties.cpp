// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/core/properties.hpp"

#include <algorithm>

#include <rdma/fabric.h>

#include "include/rdma/fi_ext_rstream.h"

namespace rstream {

CoreProperties core_properties(std::string_view name, uint32_t protocol, uint32_t version) {
    const auto rows = core_table();
    const auto row = std::find_if(rows.begin(), rows.end(), [&](const Core& core) {
        return core.name == name && (core.protocol == FI_PROTO_UNSPEC || core.protocol == protocol) &&
               FI_VERSION_GE(version, core.since);
    });
    return row != rows.end() ? row->properties : CoreProperties{};
}

uint64_t core_status_flags(const CoreProperties& properties) {
    return (properties.manual_progress ? FI_RSTREAM_MANUAL : 0) |
           (properties.kernel_ports ? FI_RSTREAM_KERNEL_PORTS : 0);
}

namespace {

std::vector<std::string> names_of(bool all) {
    std::vector<std::string> names;
    for (const Core& core : core_table()) {
        if ((all || core.by_default) && std::find(names.begin(), names.end(), core.name) == names.end()) {
            names.emplace_back(core.name);
        }
    }
    return names;
}

} // namespace

std::vector<std::string> default_cores() { return names_of(false); }
std::vector<std::string> known_cores() { return names_of(true); }

} // namespace rstream
