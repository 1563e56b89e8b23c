// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The backend on librdmacm and libibverbs, for features that libfabric does not offer.
#pragma once

#include <map>
#include <memory>
#include <optional>

#include "util/common/backend.hpp"
#include "util/rdmacm/verbs.hpp"

namespace util {

// Whether traffic from local to remote (a server has none) uses an RDMA device. Fast if there is none.
bool rdmacm_reaches(const std::optional<Address>& local, const std::optional<Address>& remote,
                    std::chrono::seconds timeout, const PathSettings& path);

std::unique_ptr<Backend> make_rdmacm_backend(std::chrono::seconds timeout, const PathSettings& path);

class RdmacmBackend : public Backend {
  public:
    RdmacmBackend(std::chrono::seconds timeout, const PathSettings& path);

    [[nodiscard]] std::string_view name() const override { return "rdmacm"; }
    [[nodiscard]] std::string device() const override { return device_; }
    std::unique_ptr<EventQueue> open_events() override;
    std::unique_ptr<Listener> listen(EventQueue& events, const Address& local, int backlog) override;
    std::unique_ptr<Connection> open(EventQueue& events, const std::optional<Address>& local,
                                     const Address& remote) override;

    [[nodiscard]] const PathSettings& path() const { return path_; }
    std::shared_ptr<VerbsDevice> device_of(rdma_cm_id* id);

  private:
    std::chrono::seconds timeout_;
    PathSettings path_;
    std::string device_ = "any"; // until the first connection determines it
    std::map<ibv_context*, std::shared_ptr<VerbsDevice>> devices_;
};

} // namespace util
