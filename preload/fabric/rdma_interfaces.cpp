// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/fabric/rdma_interfaces.hpp"

#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

namespace preload::fabric {

namespace {

// Empty if it cannot be read.
std::string line_of(const std::string& path) {
    std::string line;
    std::getline(std::ifstream(path), line);
    return line;
}

std::vector<std::filesystem::path> entries_of(const std::string& folder) {
    std::vector<std::filesystem::path> found;
    std::error_code error;
    for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
        found.push_back(at->path());
    }
    return found;
}

std::string without_colons(std::string text) {
    std::erase(text, ':');
    return text;
}

} // namespace

RdmaInterfaces::RdmaInterfaces(std::string sys) : sys_(std::move(sys)) {
    for (const auto& device : entries_of(sys_ + "/class/infiniband")) {
        for (const auto& interface : entries_of(device.string() + "/device/net")) { // IPoIB, and most adapters
            names_.insert(interface.filename());
        }
        for (const auto& port : entries_of(device.string() + "/ports")) {
            add_port(port.string());
        }
    }
}

void RdmaInterfaces::add_port(const std::string& port) {
    constexpr int most_entries = 64;
    constexpr int most_unused = 8; // in a row: an address that was removed leaves a gap
    for (int i = 0, unused = 0; i < most_entries && unused < most_unused; ++i) {
        const std::string interface = line_of(port + "/gid_attrs/ndevs/" + std::to_string(i)); // RoCE, with VLANs
        unused = interface.empty() ? unused + 1 : 0;
        if (!interface.empty()) {
            names_.insert(interface);
        }
    }
    // An iWARP device's only GID is its MAC address, and zeroes.
    constexpr size_t mac_digits = 12;
    const std::string gid = without_colons(line_of(port + "/gids/0"));
    const size_t last = gid.find_last_not_of('0');
    if (last != std::string::npos && last < mac_digits && gid.size() > mac_digits) {
        macs_.insert(gid.substr(0, mac_digits));
    }
}

bool RdmaInterfaces::has(const std::string& interface) const {
    return names_.contains(interface) ||
           macs_.contains(without_colons(line_of(sys_ + "/class/net/" + interface + "/address")));
}

} // namespace preload::fabric
