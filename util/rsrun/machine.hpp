// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What of this machine keeps connections off the fabric, before any is made.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rsrun {

struct Machine {
    bool has_device = false; // for RDMA
    bool has_active_port = false;
    bool may_pin_all = false; // CAP_IPC_LOCK
    uint64_t memlock = 0;     // the limit in bytes; UINT64_MAX: none

    // sys is where /sys is.
    static Machine look(const std::string& sys = "/sys");
};

// What the fabric is to be used with.
struct FabricUse {
    std::string cores;           // that may be used, separated by commas
    uint64_t per_connection = 0; // bytes that a connection pins
};

// One sentence for each trouble that the fabric has on this machine.
std::vector<std::string> troubles(const Machine& machine, const FabricUse& use);

} // namespace rsrun
