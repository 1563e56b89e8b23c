// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/fabric/fabric.hpp"

#include <cstdlib>
#include <cstring>

#include "util/fabric/connection.hpp"
#include "util/fabric/events.hpp"
#include "util/fabric/info.hpp"

namespace util {

namespace {

Info ask(const std::string& provider, const std::optional<Address>& local, const std::optional<Address>& remote,
         int& ret) {
    const Address& end = remote ? *remote : *local;
    const Info hints = make_hints(provider, end.family());
    if (remote && local) {
        hints->src_addr = malloc(local->length());
        if (hints->src_addr == nullptr) {
            throw std::bad_alloc();
        }
        memcpy(hints->src_addr, local->get(), local->length());
        hints->src_addrlen = local->length();
    }
    fi_info* info = nullptr;
    ret = fi_getinfo(FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION), end.host().c_str(),
                     std::to_string(end.port()).c_str(), cores_only | (remote ? 0 : FI_SOURCE), hints.get(), &info);
    return Info(ret == 0 ? info : nullptr);
}

} // namespace

std::unique_ptr<Backend> make_fabric_backend(const std::string& provider, const std::optional<Address>& local,
                                             const std::optional<Address>& remote, const PathSettings& path) {
    const auto refuse = [](const char* option, const char* what) {
        fail("{}: the fabric backend {}; --backend rdmacm can, over an RDMA device", option, what);
    };
    if (path.ib_port_space) {
        refuse("-P ib", "has only the tcp port space");
    }
    if (path.type_of_service) {
        refuse("-t", "cannot set the type of service");
    }
    if (path.ack_timeout) {
        refuse("-a", "cannot set the ACK timeout");
    }
    if ((local && local->is_gid()) || (remote && remote->is_gid())) {
        refuse("-f gid", "takes IP addresses only");
    }
    const Address& end = remote ? *remote : *local;
    std::vector<std::string> providers{provider};
    if (provider.empty()) {
        // The verbs provider returns an info for the loopback address, but has no route there.
        providers = end.is_loopback() ? std::vector<std::string>{"tcp"} : std::vector<std::string>{"verbs", "tcp"};
    }
    int ret = 0;
    for (const std::string& one : providers) {
        Info info = ask(one, local, remote, ret);
        if (info) {
            return std::make_unique<FabricBackend>(std::move(info));
        }
    }
    fail("{}: provider {} has no endpoint for this address ({}); try another --provider (fi_info -t FI_EP_MSG lists "
         "them)",
         end.text(), provider.empty() ? "tcp" : provider, fabric_error(ret));
}

FabricDomain::FabricDomain(fid_fabric* fabric, fi_info* info)
    : fabric_(fabric), mr_mode_(static_cast<uint64_t>(info->domain_attr->mr_mode)) {
    fid_domain* domain = nullptr;
    check_fabric("fi_domain", fi_domain(fabric, info, &domain, nullptr));
    domain_.reset(domain);
}

FabricBackend::FabricBackend(Info info) : info_(std::move(info)) {
    fid_fabric* fabric = nullptr;
    check_fabric("fi_fabric", fi_fabric(info_->fabric_attr, &fabric, nullptr));
    fabric_.reset(fabric);
}

std::string FabricBackend::device() const {
    return fmt::format("{} {}", info_->fabric_attr->prov_name, info_->domain_attr->name);
}

std::shared_ptr<FabricDomain> FabricBackend::domain_for(fi_info* info) {
    auto& domain = domains_[info->domain_attr->name];
    if (!domain) {
        domain = std::make_shared<FabricDomain>(fabric_.get(), info);
    }
    return domain;
}

std::unique_ptr<EventQueue> FabricBackend::open_events() { return std::make_unique<FabricEvents>(*this); }

std::unique_ptr<Listener> FabricBackend::listen(EventQueue& events, const Address& local, int backlog) {
    return std::make_unique<FabricListener>(*this, dynamic_cast<FabricEvents&>(events), info_.get(), local, backlog);
}

std::unique_ptr<Connection> FabricBackend::open(EventQueue& events, const std::optional<Address>& /*local*/,
                                                const Address& remote) {
    Info info(fi_dupinfo(info_.get())); // with the addresses that the backend was created for
    if (!info) {
        throw std::bad_alloc();
    }
    auto connection = std::make_unique<FabricConnection>(dynamic_cast<FabricEvents&>(events), domain_for(info.get()),
                                                         std::move(info));
    connection->set_remote(remote);
    return connection;
}

} // namespace util
