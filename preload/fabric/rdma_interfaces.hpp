// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The network interfaces whose addresses RDMA devices have, from sysfs: no device is opened, which takes long.
#pragma once

#include <set>
#include <string>

namespace preload::fabric {

class RdmaInterfaces {
  public:
    // sys: where sysfs is mounted. What cannot be read is left out.
    explicit RdmaInterfaces(std::string sys = "/sys");
    [[nodiscard]] bool has(const std::string& interface) const;

  private:
    void add_port(const std::string& port);

    std::string sys_;
    std::set<std::string> names_;
    std::set<std::string> macs_; // of iWARP devices: 12 digits
};

} // namespace preload::fabric
