// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Properties of this machine that prevent the use of the fabric, checked before any connection exists.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rsrun {

struct Machine {
    bool has_device = false; // an RDMA device
    bool has_active_port = false;
    bool may_pin_all = false; // CAP_IPC_LOCK
    uint64_t memlock = 0;     // RLIMIT_MEMLOCK in bytes; UINT64_MAX: unlimited

    // sys is the path of /sys.
    static Machine inspect(const std::string& sys = "/sys");
};

// How the fabric is to be used.
struct FabricUse {
    std::string cores;           // that may be used, separated by commas
    uint64_t per_connection = 0; // bytes that a connection pins
};

// One sentence for each problem of the fabric on this machine.
std::vector<std::string> troubles(const Machine& machine, const FabricUse& use);

} // namespace rsrun
