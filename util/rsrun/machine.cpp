// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/rsrun/machine.hpp"

#include <filesystem>
#include <fstream>
#include <sstream>

#include <sys/resource.h>

#include <fmt/format.h>

namespace rsrun {

namespace {

namespace fs = std::filesystem;

constexpr int cap_ipc_lock = 14; // capabilities(7)
constexpr uint64_t few_connections = 4;

// Effective capabilities, from /proc/self/status.
bool has_capability(int number) {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with("CapEff:")) {
            return ((strtoull(line.c_str() + 7, nullptr, 16) >> number) & 1) != 0;
        }
    }
    return false;
}

bool names(const std::string& cores, const std::string& wanted) {
    std::istringstream all(cores);
    for (std::string core; std::getline(all, core, ',');) {
        if (core == wanted) {
            return true;
        }
    }
    return false;
}

} // namespace

Machine Machine::inspect(const std::string& sys) {
    Machine machine;
    std::error_code error;
    for (const auto& device : fs::directory_iterator(sys + "/class/infiniband", error)) {
        machine.has_device = true;
        std::error_code no_ports;
        for (const auto& port : fs::directory_iterator(device.path() / "ports", no_ports)) {
            std::ifstream state(port.path() / "state");
            std::string line;
            machine.has_active_port =
                machine.has_active_port || (std::getline(state, line) && line.find("ACTIVE") != std::string::npos);
        }
    }
    rlimit limit{};
    machine.memlock =
        getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? limit.rlim_cur : UINT64_MAX;
    machine.may_pin_all = has_capability(cap_ipc_lock);
    return machine;
}

std::vector<std::string> troubles(const Machine& machine, const FabricUse& use) {
    std::vector<std::string> found;
    if (!names(use.cores, "verbs")) {
        return found;
    }
    if (!machine.has_active_port) {
        if (use.cores == "verbs") {
            found.push_back(fmt::format("{}: nothing moves to the fabric", machine.has_device
                                                                               ? "no port of an RDMA device is active"
                                                                               : "this machine has no RDMA device"));
        }
        return found;
    }
    const uint64_t per_connection = use.per_connection;
    const uint64_t enough = machine.memlock / per_connection;
    if (!machine.may_pin_all && machine.memlock != UINT64_MAX && enough < few_connections) {
        const std::string what =
            enough == 0 ? fmt::format("too low for one connection, which pins {} KiB: all", per_connection / 1024)
                        : fmt::format("enough for no more than {} connections, each of which pins {} KiB: others",
                                      enough, per_connection / 1024);
        found.push_back(
            fmt::format("the limit of locked memory, {} KiB, is {} stay off the fabric. Raise it: ulimit -l "
                        "unlimited, LimitMEMLOCK=infinity in a unit of systemd, or limits.conf(5)",
                        machine.memlock / 1024, what));
    }
    return found;
}

} // namespace rsrun
