// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The backend on libfabric: FI_EP_MSG endpoints of a core provider, as used by a stream.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "util/common/backend.hpp"
#include "util/fabric/fids.hpp"

namespace util {

// provider: empty for verbs if it reaches the address, else tcp.
std::unique_ptr<Backend> make_fabric_backend(const std::string& provider, const std::optional<Address>& local,
                                             const std::optional<Address>& remote, const PathSettings& path);

// A domain and its core's memory registration modes. All connections over one device share it.
class FabricDomain {
  public:
    FabricDomain(fid_fabric* fabric, fi_info* info);

    [[nodiscard]] fid_fabric* fabric() const { return fabric_; }
    [[nodiscard]] fid_domain* get() const { return domain_.get(); }
    [[nodiscard]] bool has_mode(uint64_t bit) const { return (mr_mode_ & bit) != 0; }
    // A key for a region, on cores that leave its choice to the user.
    uint64_t new_key() { return has_mode(FI_MR_PROV_KEY) ? 0 : ++last_key_; }

  private:
    fid_fabric* fabric_;
    Owned<fid_domain> domain_;
    uint64_t mr_mode_;
    uint64_t last_key_ = 0;
};

class FabricBackend : public Backend {
  public:
    explicit FabricBackend(Info info);

    [[nodiscard]] std::string_view name() const override { return "fabric"; }
    [[nodiscard]] std::string device() const override;
    std::unique_ptr<EventQueue> open_events() override;
    std::unique_ptr<Listener> listen(EventQueue& events, const Address& local, int backlog) override;
    std::unique_ptr<Connection> open(EventQueue& events, const std::optional<Address>& local,
                                     const Address& remote) override;

    [[nodiscard]] fid_fabric* fabric() const { return fabric_.get(); }
    // The domain of a request may differ from that of the listener.
    std::shared_ptr<FabricDomain> domain_for(fi_info* info);

  private:
    Info info_;
    Owned<fid_fabric> fabric_;
    std::map<std::string, std::shared_ptr<FabricDomain>> domains_;
};

} // namespace util
