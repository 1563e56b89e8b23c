// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// State shared by all sockets of a process, created at first use: loading the library has no effect. A child starts
// anew after a fork.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/owned_fid.hpp"
#include "rsockets/config.hpp"
#include "rsockets/info_cache.hpp"
#include "rsockets/mutex.hpp"
#include "rsockets/service.hpp"

namespace rsockets {

class Transport;

class Library {
  public:
    // Throws std::bad_alloc.
    static Library& get();

    [[nodiscard]] const Config& config() const { return config_; }
    Service& service() { return service_; }
    InfoCache& info_cache() { return info_cache_; }

    // The transport of an info's fabric, opened on first use; starts the service thread. 0 or -FI_E*.
    int transport_for(fi_info& info, Transport*& out);
    std::vector<Transport*> transports();

    // Connections that are being set up.
    void setup_begins() { setups_.fetch_add(1); }
    void setup_ends() { setups_.fetch_sub(1); }
    [[nodiscard]] int setups() const { return setups_.load(); }

  private:
    Library() : config_(Config::load()), service_(*this) {}
    static void at_exit();
    static void after_fork_in_child();
    void finish(bool alone);
    void deliver(const Deadline& deadline);

    Config config_;
    Mutex mutex_;
    std::vector<std::unique_ptr<Transport>> transports_ RSOCKET_GUARDED_BY(mutex_); // never removed
    std::atomic<int> setups_{0};
    InfoCache info_cache_;
    Service service_;
};

} // namespace rsockets
