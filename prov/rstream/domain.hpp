// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The domain object: one domain of the core, the info for its endpoints, and the closed endpoints that linger with data
// in flight. fi_domain(3).
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>

#include "prov/rstream/core.hpp"
#include "prov/rstream/core/domains.hpp"
#include "prov/rstream/fabric.hpp"
#include "prov/rstream/stream/idle_buffers.hpp"

namespace rstream {

class Stream;

class Domain : public fid_domain {
  public:
    static int open(Fabric& fabric, const fi_info& info, void* context, fid_domain** out);

    [[nodiscard]] Fabric& fabric() const { return fabric_; }
    // The core's domain, or the first of several.
    [[nodiscard]] fid_domain* core() const { return cores_.first(); }
    // The core domains for connections.
    [[nodiscard]] CoreDomains& cores() { return cores_; }
    [[nodiscard]] IdleBuffers& idle_buffers() { return idle_buffers_; }

    // The core's info for an endpoint of ours, with the user's addresses.
    int core_info_for(const fi_info& info, Info& out) const;
    // Max bytes of private data in a connection request or reply of the core. Determined on first use.
    int cm_data_size(size_t& size);

    void retain() { users_.fetch_add(1, std::memory_order_relaxed); }
    void release() { users_.fetch_sub(1, std::memory_order_release); }

    // Takes over a connection whose endpoint is closed and that still has data in flight.
    void linger(std::unique_ptr<Stream> connection);
    void reap();
    // FI_OPT_RSTREAM_LINGER: `close` waits no longer than that.
    int control(int command, const void* arg);
    int close();

  private:
    // Waits until no closed endpoint lingers; false on timeout.
    bool finish_lingering();
    Domain(Fabric& fabric);
    ~Domain();

    std::atomic<size_t> linger_; // milliseconds
    Fabric& fabric_;
    Info core_info_;
    CoreDomains cores_;
    IdleBuffers idle_buffers_;
    std::atomic<size_t> users_{0};
    std::mutex mutex_;
    size_t cm_data_size_ = 0;
    std::list<std::unique_ptr<Stream>> lingering_;
};

} // namespace rstream
