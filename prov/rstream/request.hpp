// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Connection requests that were neither accepted nor rejected yet, by the handle that programs hold. A program may pass
// a handle late, twice, or to another passive endpoint: it is looked up, never dereferenced.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "prov/rstream/fid.hpp"
#include "prov/rstream/wire/hello.hpp"

namespace rstream {

class PassiveEndpoint;

struct ConnectionRequest {
    struct fid fid;           // what fi_info::handle points to
    PassiveEndpoint* passive; // where it arrived; may be closed by now, see Fabric::refuse
    Info core_info;           // its handle is the core's
    wire::Hello hello;
};

class ConnectionRequests {
  public:
    AnyFid* add(std::unique_ptr<ConnectionRequest> request) {
        const std::lock_guard lock(mutex_);
        AnyFid* handle = &request->fid;
        requests_.emplace(handle, std::move(request));
        return handle;
    }

    // Removes and returns the request of a handle; null if there is none. `passive`: only a request that arrived there;
    // null for any.
    std::unique_ptr<ConnectionRequest> take(const AnyFid* handle, const PassiveEndpoint* passive) {
        const std::lock_guard lock(mutex_);
        const auto found = requests_.find(handle);
        if (found == requests_.end() || (passive != nullptr && found->second->passive != passive)) {
            return nullptr;
        }
        auto request = std::move(found->second);
        requests_.erase(found);
        return request;
    }

    [[nodiscard]] std::vector<const AnyFid*> of(const PassiveEndpoint* passive) {
        const std::lock_guard lock(mutex_);
        std::vector<const AnyFid*> handles;
        for (const auto& [handle, request] : requests_) {
            if (request->passive == passive) {
                handles.push_back(handle);
            }
        }
        return handles;
    }

    [[nodiscard]] size_t count(const PassiveEndpoint* passive) {
        const std::lock_guard lock(mutex_);
        return static_cast<size_t>(std::count_if(requests_.begin(), requests_.end(), [passive](const auto& request) {
            return request.second->passive == passive;
        }));
    }

  private:
    std::mutex mutex_;
    std::unordered_map<const AnyFid*, std::unique_ptr<ConnectionRequest>> requests_;
};

} // namespace rstream
