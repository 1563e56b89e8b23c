// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/rdmacm/rdmacm.hpp"

#include <algorithm>
#include <cstring>

#include "util/common/failure.hpp"
#include "util/rdmacm/connection.hpp"
#include "util/rdmacm/events.hpp"

namespace util {

namespace {

// The timeout for resolving addresses and routes.
int resolve_ms(std::chrono::seconds timeout) {
    constexpr std::chrono::milliseconds most{5000};
    return static_cast<int>((timeout.count() == 0 ? most : std::min<std::chrono::milliseconds>(most, timeout)).count());
}

bool have_devices() {
    int number = 0;
    ibv_device** list = ibv_get_device_list(&number);
    if (list != nullptr) {
        ibv_free_device_list(list);
    }
    return list != nullptr && number > 0;
}

rdma_port_space space_of(const PathSettings& path) { return path.ib_port_space ? RDMA_PS_IB : RDMA_PS_TCP; }

// An id with its own channel: its calls block until they are complete.
OwnedId make_id(const PathSettings& path) {
    rdma_cm_id* id = nullptr;
    if (rdma_create_id(nullptr, &id, nullptr, space_of(path)) != 0) {
        return nullptr;
    }
    return OwnedId(id);
}

// Only librdmacm can build a native InfiniBand address from a GID and a port.
OwnedAddresses complete_gid(const Address& address, const PathSettings& path, bool passive) {
    rdma_addrinfo hints{};
    hints.ai_flags = RAI_NUMERICHOST | RAI_FAMILY | (passive ? RAI_PASSIVE : 0);
    hints.ai_family = AF_IB;
    hints.ai_port_space = space_of(path);
    rdma_addrinfo* list = nullptr;
    if (rdma_getaddrinfo(address.host().c_str(), std::to_string(address.port()).c_str(), &hints, &list) != 0) {
        fail("-f gid {}: not an address of this machine's InfiniBand devices: {}", address.host(), error_text());
    }
    return OwnedAddresses(list);
}

// A socket address for calls of librdmacm, which take non-const pointers.
class Completed {
  public:
    Completed(const std::optional<Address>& address, const PathSettings& path, bool passive) {
        if (!address) {
            return;
        }
        if (address->is_gid()) {
            list_ = complete_gid(*address, path, passive);
            address_ = passive ? list_->ai_src_addr : list_->ai_dst_addr;
        } else {
            memcpy(&copy_, address->get(), address->length());
            address_ = reinterpret_cast<sockaddr*>(&copy_);
        }
    }
    [[nodiscard]] sockaddr* get() const { return address_; }
    // The header that native InfiniBand needs in front of the private data.
    [[nodiscard]] Bytes header() const {
        const auto* data = list_ ? static_cast<const std::byte*>(list_->ai_connect) : nullptr;
        return data == nullptr ? Bytes() : Bytes(data, data + list_->ai_connect_len);
    }

  private:
    OwnedAddresses list_;
    sockaddr_storage copy_{};
    sockaddr* address_ = nullptr;
};

} // namespace

bool rdmacm_reaches(const std::optional<Address>& local, const std::optional<Address>& remote,
                    std::chrono::seconds timeout, const PathSettings& path) {
    if (!have_devices()) {
        return false;
    }
    if ((local && local->is_gid()) || (remote && remote->is_gid())) {
        return true; // only native InfiniBand uses such addresses
    }
    const OwnedId id = make_id(path);
    if (!id) {
        return false;
    }
    const Completed source(local, path, true);
    if (remote) {
        const Completed target(remote, path, false);
        // For the loopback address librdmacm finds a device, but no route.
        return rdma_resolve_addr(id.get(), source.get(), target.get(), resolve_ms(timeout)) == 0 &&
               id->verbs != nullptr && rdma_resolve_route(id.get(), resolve_ms(timeout)) == 0;
    }
    return local->is_wildcard() || (rdma_bind_addr(id.get(), source.get()) == 0 && id->verbs != nullptr);
}

std::unique_ptr<Backend> make_rdmacm_backend(std::chrono::seconds timeout, const PathSettings& path) {
    return std::make_unique<RdmacmBackend>(timeout, path);
}

RdmacmBackend::RdmacmBackend(std::chrono::seconds timeout, const PathSettings& path) : timeout_(timeout), path_(path) {
    if (!have_devices()) {
        fail("--backend rdmacm: this machine has no RDMA device (see ibv_devices); --backend fabric works without");
    }
}

std::shared_ptr<VerbsDevice> RdmacmBackend::device_of(rdma_cm_id* id) {
    auto& device = devices_[id->verbs];
    if (!device) {
        device = std::make_shared<VerbsDevice>(id->verbs);
        device_ = device->name();
    }
    return device;
}

std::unique_ptr<EventQueue> RdmacmBackend::open_events() { return std::make_unique<RdmacmEvents>(*this); }

std::unique_ptr<Listener> RdmacmBackend::listen(EventQueue& events, const Address& local, int backlog) {
    auto& queue = dynamic_cast<RdmacmEvents&>(events);
    rdma_cm_id* raw = nullptr;
    if (rdma_create_id(queue.channel(), &raw, nullptr, space_of(path_)) != 0) {
        fail("rdma_create_id: {}; is the module rdma_ucm loaded, and may this user open /dev/infiniband/rdma_cm?",
             error_text());
    }
    OwnedId id(raw);
    const Completed address(local, path_, true);
    if (rdma_bind_addr(id.get(), address.get()) != 0) {
        fail("cannot bind to {}: {}; it must be an address of an RDMA device of this machine, and the port free "
             "(-p 0 picks one)",
             local.text(), error_text());
    }
    if (path_.type_of_service) {
        fail("-t: only a client can set the type of service");
    }
    if (rdma_listen(id.get(), backlog) != 0) {
        fail("cannot listen on {}: {}; is the port taken? -p 0 picks a free one", local.text(), error_text());
    }
    if (id->verbs != nullptr) {
        device_of(id.get());
    }
    return std::make_unique<RdmacmListener>(std::move(id));
}

std::unique_ptr<Connection> RdmacmBackend::open(EventQueue& events, const std::optional<Address>& local,
                                                const Address& remote) {
    auto& queue = dynamic_cast<RdmacmEvents&>(events);
    OwnedId id = make_id(path_);
    if (!id) {
        fail("rdma_create_id: {}; is the module rdma_ucm loaded, and may this user open /dev/infiniband/rdma_cm?",
             error_text());
    }
    const Completed source(local, path_, true);
    const Completed target(remote, path_, false);
    if (rdma_resolve_addr(id.get(), source.get(), target.get(), resolve_ms(timeout_)) != 0 || id->verbs == nullptr) {
        fail("{}: the address does not route over an RDMA device{}{}: {}; --backend fabric --provider tcp needs none",
             remote.text(), local ? " from " : "", local ? local->host() : "", error_text());
    }
    const auto set = [&](const char* option, int name, uint8_t value) {
        if (rdma_set_option(id.get(), RDMA_OPTION_ID, name, &value, sizeof(value)) != 0) {
            fail("{} {}: refused by {}: {}", option, value, ibv_get_device_name(id->verbs->device), error_text());
        }
    };
    if (path_.type_of_service) {
        set("-t", RDMA_OPTION_ID_TOS, *path_.type_of_service);
    }
    if (path_.ack_timeout) {
        set("-a", RDMA_OPTION_ID_ACK_TIMEOUT, *path_.ack_timeout);
    }
    if (rdma_resolve_route(id.get(), resolve_ms(timeout_)) != 0) {
        fail("{}: there is no route over {}: {}", remote.text(), ibv_get_device_name(id->verbs->device), error_text());
    }
    if (rdma_migrate_id(id.get(), queue.channel()) != 0) {
        fail("rdma_migrate_id: {}", error_text());
    }
    auto device = device_of(id.get());
    auto connection = std::make_unique<RdmacmConnection>(std::move(id), std::move(device));
    connection->set_remote(remote, target.header());
    return connection;
}

} // namespace util
