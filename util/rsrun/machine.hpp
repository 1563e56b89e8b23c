// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What of this machine keeps sockets from being carried, before any is made.
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

// One sentence for each trouble: core: the names of the cores that may be used, separated by commas; per_connection is
// the memory that a connection pins, in bytes; rules: whether rules name addresses.
std::vector<std::string> troubles(const Machine& machine, const std::string& core, uint64_t per_connection, bool rules);

} // namespace rsrun
