// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/passive.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <new>

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "include/rdma/fi_ext_rstream.h"
#include "prov/rstream/info.hpp"
#include "prov/rstream/log.hpp"
#include "prov/rstream/status_option.hpp"

namespace rstream {

namespace {
extern fi_ops pep_fid_ops;
extern fi_ops_ep pep_ep_ops;
extern fi_ops_cm pep_cm_ops;

// Fractions of the fd limit of this process: for clients in a handshake, and for requests that wait for the program.
constexpr size_t share_of_handshakes = 16;
constexpr size_t share_of_requests = 4;
constexpr size_t min_handshakes = 8;
constexpr size_t max_handshakes = 256;

constexpr size_t max_reject_data = 255; // the message has one byte for its length

size_t descriptor_limit() {
    rlimit limit{};
    return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? static_cast<size_t>(limit.rlim_cur) : 1024;
}

bool is_loopback(const sockaddr& address) {
    if (address.sa_family == AF_INET6) {
        const in6_addr& six = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
        return IN6_IS_ADDR_LOOPBACK(&six) || (IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == IN_LOOPBACKNET);
    }
    return address.sa_family == AF_INET &&
           ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

} // namespace

int PassiveEndpoint::open(Fabric& fabric, const fi_info& info, void* context, fid_pep** out) {
    if (info.ep_attr != nullptr && info.ep_attr->type != FI_EP_UNSPEC && info.ep_attr->type != FI_RSTREAM_EP_STREAM) {
        return -FI_EINVAL;
    }
    if (info.src_addr != nullptr && !is_internet_address(info.src_addr, info.src_addrlen)) {
        return -FI_EINVAL;
    }
    struct Deleter {
        void operator()(PassiveEndpoint* p) const { delete p; }
    };
    std::unique_ptr<PassiveEndpoint, Deleter> pep(new PassiveEndpoint(fabric));
    pep->info_.reset(fi_dupinfo(&info));
    if (!pep->info_) {
        return -FI_ENOMEM;
    }
    Info core_info;
    const char* domain = info.domain_attr != nullptr ? info.domain_attr->name : nullptr;
    int ret = core_domain_info(fabric.name().core, fabric.name().name, domain, info.addr_format, core_info);
    if (ret != 0) {
        return ret;
    }
    free(core_info->src_addr);
    core_info->src_addr = nullptr;
    core_info->src_addrlen = 0;
    if (info.src_addr != nullptr && info.src_addrlen != 0) {
        if ((core_info->src_addr = malloc(info.src_addrlen)) == nullptr) {
            return -FI_ENOMEM;
        }
        memcpy(core_info->src_addr, info.src_addr, info.src_addrlen);
        core_info->src_addrlen = info.src_addrlen;
    }
    fid_pep* core = nullptr;
    if ((ret = fi_passive_ep(fabric.core(), core_info.get(), &core, nullptr)) != 0) {
        return ret;
    }
    pep->core_.reset(core);
    pep->properties_ = fabric.properties_of(*core_info);
    pep->fid.fclass = FI_CLASS_PEP;
    pep->fid.context = context;
    pep->fid.ops = &pep_fid_ops;
    pep->ops = &pep_ep_ops;
    pep->cm = &pep_cm_ops;
    fabric.add(pep.get());
    fabric.retain();
    *out = pep.release();
    return 0;
}

int PassiveEndpoint::bind(AnyFid* other, uint64_t flags) {
    if (other == nullptr || other->fclass != FI_CLASS_EQ || flags != 0 || queue_ != nullptr) {
        return -FI_EINVAL;
    }
    auto* queue = object_of<EventQueue, fid_eq>(other);
    fid_eq* core_queue = queue->dispatcher()->core();
    const auto lock = queue->dispatcher()->lock(); // its threads call `own` as soon as that is open
    std::unique_ptr<ListenQueue> own;
    if (properties_.guarded_listeners) {
        const std::chrono::milliseconds limit(fabric_.params().handshake_timeout);
        const size_t most = std::clamp(descriptor_limit() / share_of_handshakes, min_handshakes, max_handshakes);
        if (const int ret = ListenQueue::open(fabric_.core(), queue->dispatcher(), this, limit, most, own); ret != 0) {
            return ret;
        }
        core_queue = own->core();
    }
    if (const int ret = fi_pep_bind(core_.get(), &core_queue->fid, 0); ret != 0) {
        return ret;
    }
    listen_queue_ = std::move(own);
    queue_ = queue;
    queue_->retain();
    queue_->dispatcher()->add(&core_->fid, this);
    return 0;
}

int PassiveEndpoint::control(int command, void* arg) {
    if (command != FI_BACKLOG) {
        return -FI_ENOSYS;
    }
    if (arg == nullptr || *static_cast<int*>(arg) <= 0) {
        return -FI_EINVAL;
    }
    if (listening_) {
        return -FI_EOPBADSTATE;
    }
    backlog_ = *static_cast<int*>(arg);
    // The core may have a backlog of its own; where it does not support FI_BACKLOG, ours is the limit.
    fi_control(&core_->fid, FI_BACKLOG, arg);
    return 0;
}

int PassiveEndpoint::set_name(const void* addr, size_t length) {
    if (addr == nullptr || length == 0) {
        return -FI_EINVAL;
    }
    if (listening_) {
        return -FI_EOPBADSTATE;
    }
    return fi_setname(&core_->fid, const_cast<void*>(addr), length);
}

int PassiveEndpoint::get_name(void* addr, size_t* length) {
    return length == nullptr || (addr == nullptr && *length != 0) ? -FI_EINVAL
                                                                  : core_address(fi_getname, &core_->fid, addr, length);
}

int PassiveEndpoint::listen() {
    if (queue_ == nullptr) {
        return -FI_ENOEQ;
    }
    if (listening_) {
        return -FI_EOPBADSTATE;
    }
    const int ret = fi_listen(core_.get());
    listening_ = ret == 0;
    if (listening_ && properties_.trusts_peers) {
        warn_of_strangers();
    }
    if (listening_ && listen_queue_) {
        listen_queue_->begin();
    }
    return ret;
}

// The core reads data that arrives on a connection before this provider does: nothing here can protect it from a
// message that crashes it.
void PassiveEndpoint::warn_of_strangers() const {
    sockaddr_storage local{};
    size_t length = sizeof(local);
    if (fi_getname(&core_->fid, &local, &length) != 0 || is_loopback(reinterpret_cast<const sockaddr&>(local))) {
        return;
    }
    RSTREAM_WARN(FI_LOG_EP_CTRL, "listening beyond the loopback interface on kernel TCP: libfabric's tcp core does not "
                                 "check what clients send, and any of them can end this process; see SECURITY in "
                                 "fi_rstream(7)\n");
}

int PassiveEndpoint::get_option(int name, void* value, size_t* length) {
    if (value == nullptr || length == nullptr) {
        return -FI_EINVAL;
    }
    if (name == FI_OPT_RSTREAM_STATUS) {
        fi_rstream_status status{};
        status.flags = core_status_flags(properties_);
        return store_status(status, value, length);
    }
    if (name != FI_OPT_CM_DATA_SIZE) {
        return -FI_ENOPROTOOPT;
    }
    if (*length < sizeof(size_t)) {
        return -FI_ETOOSMALL;
    }
    size_t core_size = 0;
    size_t core_length = sizeof(core_size);
    if (const int ret = fi_getopt(&core_->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &core_size, &core_length);
        ret != 0) {
        return ret;
    }
    *static_cast<size_t*>(value) = core_size - std::min(core_size, wire::Hello::size);
    *length = sizeof(size_t);
    return 0;
}

int PassiveEndpoint::reject_core(AnyFid* core_handle, wire::Reject::Reason reason, std::span<const std::byte> data) {
    std::array<std::byte, wire::Reject::size + max_reject_data> message; // without allocation: there may be no memory
    wire::Reject{reason, static_cast<uint8_t>(data.size())}.encode(
        std::span<std::byte, wire::Reject::size>(message.data(), wire::Reject::size));
    std::copy(data.begin(), data.end(), message.begin() + wire::Reject::size);
    return fi_reject(core_.get(), core_handle, message.data(), wire::Reject::size + data.size());
}

int PassiveEndpoint::reject(const AnyFid* handle, std::span<const std::byte> data) {
    size_t capacity = 0;
    size_t length = sizeof(capacity);
    if (const int ret = get_option(FI_OPT_CM_DATA_SIZE, &capacity, &length); ret == 0 && data.size() > capacity) {
        return -FI_EINVAL;
    }
    if (data.size() > max_reject_data) {
        return -FI_EINVAL;
    }
    const auto request = fabric_.requests().take(handle, this);
    if (!request) {
        return -FI_EINVAL;
    }
    return reject_core(request->core_info->handle, wire::Reject::Reason::user, data);
}

void PassiveEndpoint::turn_down(AnyFid* core_handle, wire::Reject::Reason reason) {
    if (const int ret = reject_core(core_handle, reason, {}); ret != 0) {
        RSTREAM_INFO(FI_LOG_EP_CTRL, "could not reject a request: %s\n", fi_strerror(-ret));
    }
}

void PassiveEndpoint::on_core_event(uint32_t event, const fi_eq_cm_entry& entry, std::span<const std::byte> data) {
    if (event != FI_CONNREQ || entry.info == nullptr) {
        RSTREAM_INFO(FI_LOG_EP_CTRL, "event %u on a passive endpoint\n", event);
        return;
    }
    AnyFid* core_handle = entry.info->handle;
    if (guarded([&] { return on_request(Info(entry.info), data); }) != 0) {
        RSTREAM_WARN(FI_LOG_EP_CTRL, "out of memory: a connection request is rejected\n");
        turn_down(core_handle, wire::Reject::Reason::resources);
    }
}

int PassiveEndpoint::on_request(Info core_info, std::span<const std::byte> data) {
    wire::Hello hello;
    if (const auto error = wire::Hello::parse(data, hello); error != wire::Hello::Error::none) {
        RSTREAM_WARN(FI_LOG_EP_CTRL, "a connection request is rejected: %s\n", to_string(error));
        turn_down(core_info->handle,
                  error == wire::Hello::Error::version ? wire::Reject::Reason::version : wire::Reject::Reason::hello);
        return 0;
    }
    if (const size_t waiting = fabric_.requests().count(this); waiting != 0 && waiting >= max_waiting()) {
        RSTREAM_INFO(FI_LOG_EP_CTRL, "a connection request is rejected: %zu are waiting already\n", waiting);
        turn_down(core_info->handle, wire::Reject::Reason::backlog);
        return 0;
    }
    Info ours;
    if (const int ret = info_over_core(*core_info, fabric_.params(), info_->fabric_attr->api_version, ours); ret != 0) {
        return ret;
    }
    // Some cores report an address format that does not match the addresses.
    if (ours->src_addr != nullptr) {
        const bool six = static_cast<const sockaddr*>(ours->src_addr)->sa_family == AF_INET6;
        ours->addr_format = six ? FI_SOCKADDR_IN6 : FI_SOCKADDR_IN;
    }
    free(ours->fabric_attr->prov_name);
    if ((ours->fabric_attr->prov_name = strdup("rstream")) == nullptr) {
        return -FI_ENOMEM;
    }
    auto request = std::make_unique<ConnectionRequest>();
    request->fid.fclass = FI_CLASS_CONNREQ;
    request->passive = this;
    request->core_info = std::move(core_info);
    request->hello = hello;
    const AnyFid* handle = ours->handle = fabric_.requests().add(std::move(request));
    try {
        queue_->push(FI_CONNREQ, &fid, ours.release(), data.subspan(wire::Hello::size, hello.user_length));
    } catch (const std::bad_alloc&) {
        fabric_.requests().take(handle, this); // the program never gets it; our caller rejects the core's
        throw;
    }
    return 0;
}

void PassiveEndpoint::on_core_error(const fi_eq_err_entry& entry) {
    fi_eq_err_entry ours = entry;
    ours.fid = &fid;
    ours.context = fid.context;
    ours.err_data = nullptr;
    ours.err_data_size = 0;
    queue_->push_error(ours, {});
}

void PassiveEndpoint::refuse(const ConnectionRequest& request) {
    turn_down(request.core_info->handle, wire::Reject::Reason::user);
}

// At least one. With a listen queue, each request may hold an fd, and clients must not get all of them.
size_t PassiveEndpoint::max_waiting() const {
    const size_t share = listen_queue_ ? std::max<size_t>(descriptor_limit() / share_of_requests, 1)
                                       : std::numeric_limits<size_t>::max();
    return backlog_ > 0 ? std::min(share, static_cast<size_t>(backlog_)) : share;
}

int PassiveEndpoint::close() {
    fabric_.remove(this);
    {
        std::unique_lock<std::recursive_mutex> lock; // no further request may arrive before it is closed
        if (queue_ != nullptr) {
            lock = queue_->dispatcher()->lock();
            if (listen_queue_) {
                listen_queue_->finish();
            }
            queue_->dispatcher()->remove(&core_->fid, this);
            queue_->forget(&fid);
        }
        for (const AnyFid* handle : fabric_.requests().of(this)) {
            if (const auto request = fabric_.requests().take(handle, this)) {
                refuse(*request);
            }
        }
        core_.reset();
        listen_queue_.reset();
    }
    if (queue_ != nullptr) {
        queue_->release();
    }
    Fabric& fabric = fabric_;
    delete this;
    fabric.release();
    return 0;
}

namespace {

PassiveEndpoint& pep_of(AnyFid* f) { return *object_of<PassiveEndpoint, fid_pep>(f); }

std::span<const std::byte> bytes(const void* data, size_t length) {
    return {static_cast<const std::byte*>(data), data != nullptr ? length : 0};
}

fi_ops pep_fid_ops = {
    .size = sizeof(fi_ops),
    .close = [](AnyFid* f) { return guarded([&] { return pep_of(f).close(); }); },
    .bind = [](AnyFid* f, AnyFid* other,
               uint64_t flags) { return guarded([&] { return pep_of(f).bind(other, flags); }); },
    .control = [](AnyFid* f, int command,
                  void* arg) { return guarded([&] { return pep_of(f).control(command, arg); }); },
    .ops_open = RSTREAM_REFUSE(fi_ops, ops_open),
    .tostr = nullptr,
    .ops_set = nullptr,
};

fi_ops_ep pep_ep_ops = {
    .size = sizeof(fi_ops_ep),
    .cancel = RSTREAM_REFUSE(fi_ops_ep, cancel),
    .getopt = [](AnyFid* f, int level, int name, void* value, size_t* length) -> int {
        return level != FI_OPT_ENDPOINT ? -FI_ENOPROTOOPT
                                        : guarded([&] { return pep_of(f).get_option(name, value, length); });
    },
    .setopt = RSTREAM_REFUSE(fi_ops_ep, setopt),
    .tx_ctx = RSTREAM_REFUSE(fi_ops_ep, tx_ctx),
    .rx_ctx = RSTREAM_REFUSE(fi_ops_ep, rx_ctx),
    .rx_size_left = RSTREAM_REFUSE(fi_ops_ep, rx_size_left),
    .tx_size_left = RSTREAM_REFUSE(fi_ops_ep, tx_size_left),
};

fi_ops_cm pep_cm_ops = {
    .size = sizeof(fi_ops_cm),
    .setname = [](AnyFid* f, void* addr,
                  size_t length) { return guarded([&] { return pep_of(f).set_name(addr, length); }); },
    .getname = [](AnyFid* f, void* addr,
                  size_t* length) { return guarded([&] { return pep_of(f).get_name(addr, length); }); },
    .getpeer = RSTREAM_REFUSE(fi_ops_cm, getpeer),
    .connect = RSTREAM_REFUSE(fi_ops_cm, connect),
    .listen = [](fid_pep* pep) { return guarded([&] { return pep_of(&pep->fid).listen(); }); },
    .accept = RSTREAM_REFUSE(fi_ops_cm, accept),
    .reject = [](fid_pep* pep, AnyFid* handle, const void* data, size_t length) -> int {
        return data == nullptr && length != 0
                   ? -FI_EINVAL
                   : guarded([&] { return pep_of(&pep->fid).reject(handle, bytes(data, length)); });
    },
    .shutdown = RSTREAM_REFUSE(fi_ops_cm, shutdown),
    .join = RSTREAM_REFUSE(fi_ops_cm, join),
};

} // namespace

} // namespace rstream
