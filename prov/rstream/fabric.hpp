// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The fabric object: one fabric of one core provider. fi_fabric(3), and fi_trywait of fi_poll(3).
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "prov/rstream/core.hpp"
#include "prov/rstream/core/properties.hpp"
#include "prov/rstream/params.hpp"
#include "prov/rstream/request.hpp"

namespace rstream {

class Domain;

class Fabric : public fid_fabric {
  public:
    static int open(const fi_fabric_attr& attr, void* context, fid_fabric** out);

    [[nodiscard]] fid_fabric* core() const { return core_.get(); }
    [[nodiscard]] const FabricName& name() const { return name_; }
    // Properties of this fabric's core, for endpoints with such an info.
    [[nodiscard]] CoreProperties properties_of(const fi_info& core_info) const {
        return core_properties(name_.core, core_info.ep_attr->protocol, fi_version());
    }
    [[nodiscard]] const Params& params() const { return params_; }
    [[nodiscard]] ConnectionRequests& requests() { return requests_; }

    // Each object opened on the fabric holds a reference; the fabric cannot be closed meanwhile.
    void retain() { users_.fetch_add(1, std::memory_order_relaxed); }
    void release() { users_.fetch_sub(1, std::memory_order_release); }

    void add(PassiveEndpoint* passive);
    void remove(PassiveEndpoint* passive);
    // Rejects a request that the program does not answer. False if its passive endpoint is closed.
    bool refuse(const ConnectionRequest& request);

    void add(Domain* domain);
    void remove(Domain* domain);
    // Makes progress for closed endpoints with data in flight, and releases those that are done.
    void reap_lingering();
    void lingering_changed(ptrdiff_t by) { lingering_.fetch_add(static_cast<size_t>(by), std::memory_order_relaxed); }

    int try_wait(AnyFid** fids, int count);
    int close();

  private:
    Fabric() : fid_fabric{} {}

    Params params_;
    FabricName name_;
    Owned<fid_fabric> core_;
    ConnectionRequests requests_;
    std::atomic<size_t> users_{0};
    std::atomic<size_t> lingering_{0};
    std::mutex mutex_;
    std::vector<Domain*> domains_;
    std::vector<PassiveEndpoint*> passives_;
};

} // namespace rstream
