// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/endpoint.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "include/rdma/fi_ext_rstream.h"
#include "prov/rstream/domain.hpp"
#include "prov/rstream/info.hpp"
#include "prov/rstream/log.hpp"
#include "prov/rstream/unsupported.hpp"

namespace rstream {

namespace {
extern fi_ops ep_fid_ops;
extern fi_ops_ep ep_ops;
extern fi_ops_cm ep_cm_ops;
extern fi_ops_msg ep_msg_ops;

bool valid(const iovec* iov, size_t count) {
    if (count > stream_iov_limit || (count != 0 && iov == nullptr)) {
        return false;
    }
    return std::all_of(iov, iov + count, [](const iovec& v) { return v.iov_base != nullptr || v.iov_len == 0; });
}
} // namespace

int Endpoint::open(Domain& domain, const fi_info& info, void* context, fid_ep** out) {
    if (info.ep_attr != nullptr && info.ep_attr->type != FI_EP_UNSPEC && info.ep_attr->type != FI_RSTREAM_EP_STREAM) {
        return -FI_EINVAL;
    }
    // Those of a request are the core's.
    if (info.handle == nullptr &&
        ((info.src_addr != nullptr && !is_internet_address(info.src_addr, info.src_addrlen)) ||
         (info.dest_addr != nullptr && !is_internet_address(info.dest_addr, info.dest_addrlen)))) {
        return -FI_EINVAL;
    }
    struct Deleter {
        void operator()(Endpoint* e) const { delete e; }
    };
    std::unique_ptr<Endpoint, Deleter> ep(new Endpoint(domain));
    ep->info_.reset(fi_dupinfo(&info));
    if (!ep->info_) {
        return -FI_ENOMEM;
    }
    const Params& params = domain.fabric().params();
    ep->linger_ = params.linger;
    ep->settings_ = {params.send_buf_size,
                     params.recv_buf_size,
                     params.tx_size,
                     params.rx_size,
                     params.send_buf_fixed ? 0 : params.max_buf_size,
                     params.recv_buf_fixed ? 0 : params.max_buf_size,
                     0,
                     params.shrink_timeout,
                     {params.keepalive_idle, params.keepalive_interval, params.keepalive_count, params.user_timeout}};
    ep->fid.fclass = FI_CLASS_EP;
    ep->fid.context = context;
    ep->fid.ops = &ep_fid_ops;
    ep->ops = &ep_ops;
    ep->cm = &ep_cm_ops;
    ep->msg = &ep_msg_ops;
    ep->rma = &no_rma_ops;
    ep->tagged = &no_tagged_ops;
    ep->atomic = &no_atomic_ops;
    ep->collective = &no_collective_ops;
    if (info.handle != nullptr) {
        ep->request_ = domain.fabric().requests().take(info.handle, nullptr);
        if (!ep->request_) {
            RSTREAM_WARN(FI_LOG_EP_CTRL, "the info's handle is not that of a pending connection request\n");
            return -FI_EINVAL;
        }
    }
    domain.retain();
    *out = ep.release();
    return 0;
}

int Endpoint::bind(AnyFid* other, uint64_t flags) {
    if (other == nullptr || other->fclass != FI_CLASS_EQ || flags != 0) {
        return -FI_EINVAL; // a stream has no completion queues, counters or address vectors
    }
    if (queue_ != nullptr) {
        return -FI_EINVAL;
    }
    queue_ = object_of<EventQueue, fid_eq>(other);
    queue_->retain();
    return 0;
}

int Endpoint::enable() {
    const base::Guard lock(setting_);
    if (connection_) {
        return 0;
    }
    if (queue_ == nullptr) {
        return -FI_ENOEQ;
    }
    Info core_info;
    if (request_) {
        core_info.reset(fi_dupinfo(request_->core_info.get()));
        if (!core_info) {
            return -FI_ENOMEM;
        }
        core_info->handle = request_->core_info->handle;
    } else if (const int ret = domain_.core_info_for(*info_, core_info); ret != 0) {
        return ret;
    }
    const int ret = Stream::open(domain_, *core_info, *queue_, &fid, settings_, connection_);
    stream_.store(connection_.get(), std::memory_order_release);
    return ret;
}

int Endpoint::control(int command, void* arg) {
    switch (command) {
    case FI_ENABLE:
        return enable();
    case FI_GETWAIT:
        if (arg == nullptr) {
            return -FI_EINVAL;
        }
        if (stream() == nullptr) {
            return -FI_EOPBADSTATE;
        }
        return stream()->wait_fd(*static_cast<int*>(arg));
    case FI_GETWAITOBJ:
        if (arg == nullptr) {
            return -FI_EINVAL;
        }
        *static_cast<fi_wait_obj*>(arg) = FI_WAIT_FD;
        return 0;
    default:
        return -FI_ENOSYS;
    }
}

int Endpoint::set_name(const void* addr, size_t length) {
    if (!is_internet_address(addr, length)) {
        return -FI_EINVAL;
    }
    if (stream() != nullptr || request_) {
        return -FI_EOPBADSTATE;
    }
    void* copy = malloc(length);
    if (copy == nullptr) {
        return -FI_ENOMEM;
    }
    memcpy(copy, addr, length);
    free(info_->src_addr);
    info_->src_addr = copy;
    info_->src_addrlen = length;
    return 0;
}

int Endpoint::get_name(void* addr, size_t* length) {
    if (length == nullptr || (addr == nullptr && *length != 0)) {
        return -FI_EINVAL;
    }
    const int ret = stream() != nullptr ? stream()->name(addr, length) : -FI_EOPBADSTATE;
    return ret != -FI_EOPBADSTATE ? ret : give_address(info_->src_addr, info_->src_addrlen, addr, length);
}

int Endpoint::get_peer(void* addr, size_t* length) {
    if (length == nullptr || (addr == nullptr && *length != 0)) {
        return -FI_EINVAL;
    }
    const int ret = stream() != nullptr ? stream()->peer(addr, length) : -FI_EOPBADSTATE;
    return ret != -FI_EOPBADSTATE ? ret : -FI_ENOTCONN;
}

int Endpoint::connect(const void* addr, std::span<const std::byte> data) {
    if (addr == nullptr) {
        addr = info_->dest_addr;
    }
    if (addr == nullptr || request_) {
        return -FI_EINVAL;
    }
    if (const int ret = enable(); ret != 0) {
        return ret;
    }
    return stream()->connect(addr, data);
}

int Endpoint::accept(std::span<const std::byte> data) {
    if (!request_) {
        return -FI_EINVAL;
    }
    if (const int ret = enable(); ret != 0) {
        return ret;
    }
    const int ret = stream()->accept(request_->hello, data);
    request_taken_ = stream()->request_used();
    return ret;
}

int Endpoint::close() {
    if (connection_) {
        if (connection_->close(std::chrono::milliseconds(linger_.load()))) {
            domain_.linger(std::move(connection_));
        }
        connection_.reset();
    }
    if (request_ && !request_taken_ && !domain_.fabric().refuse(*request_)) {
        // An endpoint made of the request frees the request's resources in the core.
        fid_ep* ep = nullptr;
        if (fi_endpoint(domain_.core(), request_->core_info.get(), &ep, nullptr) == 0) {
            fi_close(&ep->fid);
        }
    }
    if (queue_ != nullptr) {
        queue_->forget(&fid);
        queue_->release();
    }
    Domain& domain = domain_;
    delete this;
    domain.reap();
    domain.release();
    return 0;
}

ssize_t Endpoint::send(const iovec* iov, size_t count, uint64_t flags) {
    if ((flags & ~(FI_PEEK | FI_MORE | stream_op_flags)) != 0 || !valid(iov, count)) {
        return -FI_EINVAL;
    }
    if (stream() == nullptr) {
        return -FI_ENOTCONN;
    }
    return after_call((flags & FI_PEEK) != 0 ? stream()->peek_send()
                                             : stream()->send(iov, count, (flags & FI_MORE) != 0));
}

ssize_t Endpoint::recv(const iovec* iov, size_t count, uint64_t flags) {
    if ((flags & ~(FI_PEEK | stream_op_flags)) != 0 || !valid(iov, count)) {
        return -FI_EINVAL;
    }
    if (stream() == nullptr) {
        return -FI_ENOTCONN;
    }
    return after_call((flags & FI_PEEK) != 0 ? stream()->peek_recv(iov, count) : stream()->recv(iov, count));
}

// An idle call makes progress for lingering endpoints: the program may never read an event queue, and the lingering
// endpoints may depend on just its calls.
ssize_t Endpoint::after_call(ssize_t result) const {
    if (result == -FI_EAGAIN) {
        domain_.fabric().reap_lingering();
    }
    return result;
}

int Endpoint::map(void* buffer, size_t length, uint64_t access, uint64_t* offset) {
    if (buffer == nullptr || length == 0 || offset == nullptr || (access & ~FI_REMOTE_WRITE) != 0) {
        return -FI_EINVAL;
    }
    return stream() != nullptr ? stream()->map(buffer, length, access, *offset) : -FI_ENOTCONN;
}

int Endpoint::unmap(const void* buffer, size_t length, uint64_t flags) {
    if ((flags & ~FI_RSTREAM_UNATTENDED) != 0) {
        return -FI_EINVAL;
    }
    return stream() != nullptr ? stream()->unmap(buffer, length, flags == 0) : -FI_EINVAL;
}

ssize_t Endpoint::write_map(const void* buffer, size_t length, uint64_t offset, uint64_t flags) {
    if ((buffer == nullptr && length != 0) || (flags & ~FI_MORE) != 0) {
        return -FI_EINVAL;
    }
    return stream() != nullptr ? stream()->write_map(buffer, length, offset, flags != 0) : -FI_ENOTCONN;
}

namespace {

Endpoint& endpoint_of(AnyFid* f) { return *object_of<Endpoint, fid_ep>(f); }
Endpoint& endpoint_of(fid_ep* ep) { return *object_of<Endpoint>(ep); }

std::span<const std::byte> bytes(const void* data, size_t length) {
    return {static_cast<const std::byte*>(data), data != nullptr ? length : 0};
}

fi_ops_rstream_map map_ops = {
    .size = sizeof(fi_ops_rstream_map),
    .map = [](fid_ep* ep, void* buf, size_t len, uint64_t access, uint64_t* offset) -> int {
        return guarded([&] { return endpoint_of(ep).map(buf, len, access, offset); });
    },
    .unmap = [](fid_ep* ep, void* buf, size_t len, uint64_t flags) -> int {
        return guarded([&] { return endpoint_of(ep).unmap(buf, len, flags); });
    },
    .write = [](fid_ep* ep, const void* buf, size_t len, uint64_t offset, uint64_t flags) -> ssize_t {
        return guarded([&] { return endpoint_of(ep).write_map(buf, len, offset, flags); });
    },
};

// The extensions of <rdma/fi_ext_rstream.h>, by name.
int open_ops(AnyFid* /*ep*/, const char* name, uint64_t flags, void** ops, void* /*context*/) {
    if (name == nullptr || ops == nullptr || flags != 0) {
        return -FI_EINVAL;
    }
    if (strcmp(name, FI_RSTREAM_MAP_OPS) != 0) {
        return -FI_ENOSYS;
    }
    *ops = &map_ops;
    return 0;
}

fi_ops ep_fid_ops = {
    .size = sizeof(fi_ops),
    .close = [](AnyFid* f) { return guarded([&] { return endpoint_of(f).close(); }); },
    .bind = [](AnyFid* f, AnyFid* other,
               uint64_t flags) { return guarded([&] { return endpoint_of(f).bind(other, flags); }); },
    .control = [](AnyFid* f, int command,
                  void* arg) { return guarded([&] { return endpoint_of(f).control(command, arg); }); },
    .ops_open = open_ops,
    .tostr = nullptr,
    .ops_set = nullptr,
};

fi_ops_ep ep_ops = {
    .size = sizeof(fi_ops_ep),
    .cancel = [](AnyFid*, void*) -> ssize_t { return -FI_ENOENT; }, // no operation is ever outstanding
    .getopt = [](AnyFid* f, int level, int name, void* value, size_t* length) -> int {
        return level != FI_OPT_ENDPOINT ? -FI_ENOPROTOOPT
                                        : guarded([&] { return endpoint_of(f).get_option(name, value, length); });
    },
    .setopt = [](AnyFid* f, int level, int name, const void* value, size_t length) -> int {
        return level != FI_OPT_ENDPOINT ? -FI_ENOPROTOOPT
                                        : guarded([&] { return endpoint_of(f).set_option(name, value, length); });
    },
    .tx_ctx = RSTREAM_REFUSE(fi_ops_ep, tx_ctx),
    .rx_ctx = RSTREAM_REFUSE(fi_ops_ep, rx_ctx),
    .rx_size_left = RSTREAM_REFUSE(fi_ops_ep, rx_size_left),
    .tx_size_left = RSTREAM_REFUSE(fi_ops_ep, tx_size_left),
};

fi_ops_cm ep_cm_ops = {
    .size = sizeof(fi_ops_cm),
    .setname = [](AnyFid* f, void* addr,
                  size_t length) { return guarded([&] { return endpoint_of(f).set_name(addr, length); }); },
    .getname = [](AnyFid* f, void* addr,
                  size_t* length) { return guarded([&] { return endpoint_of(f).get_name(addr, length); }); },
    .getpeer = [](fid_ep* ep, void* addr,
                  size_t* length) { return guarded([&] { return endpoint_of(ep).get_peer(addr, length); }); },
    .connect = [](fid_ep* ep, const void* addr, const void* data, size_t length) -> int {
        return data == nullptr && length != 0
                   ? -FI_EINVAL
                   : guarded([&] { return endpoint_of(ep).connect(addr, bytes(data, length)); });
    },
    .listen = RSTREAM_REFUSE(fi_ops_cm, listen),
    .accept = [](fid_ep* ep, const void* data, size_t length) -> int {
        return data == nullptr && length != 0 ? -FI_EINVAL
                                              : guarded([&] { return endpoint_of(ep).accept(bytes(data, length)); });
    },
    .reject = RSTREAM_REFUSE(fi_ops_cm, reject),
    .shutdown = [](fid_ep* ep, uint64_t flags) { return guarded([&] { return endpoint_of(ep).shutdown(flags); }); },
    .join = RSTREAM_REFUSE(fi_ops_cm, join),
};

fi_ops_msg ep_msg_ops = {
    .size = sizeof(fi_ops_msg),
    .recv = [](fid_ep* ep, void* buf, size_t len, void*, fi_addr_t, void*) -> ssize_t {
        const iovec iov{buf, len};
        return guarded([&] { return endpoint_of(ep).recv(&iov, 1, 0); });
    },
    .recvv = [](fid_ep* ep, const iovec* iov, void**, size_t count, fi_addr_t, void*) -> ssize_t {
        return guarded([&] { return endpoint_of(ep).recv(iov, count, 0); });
    },
    .recvmsg = [](fid_ep* ep, const fi_msg* msg, uint64_t flags) -> ssize_t {
        return msg == nullptr ? -FI_EINVAL
                              : guarded([&] { return endpoint_of(ep).recv(msg->msg_iov, msg->iov_count, flags); });
    },
    .send = [](fid_ep* ep, const void* buf, size_t len, void*, fi_addr_t, void*) -> ssize_t {
        const iovec iov{const_cast<void*>(buf), len};
        return guarded([&] { return endpoint_of(ep).send(&iov, 1, 0); });
    },
    .sendv = [](fid_ep* ep, const iovec* iov, void**, size_t count, fi_addr_t, void*) -> ssize_t {
        return guarded([&] { return endpoint_of(ep).send(iov, count, 0); });
    },
    .sendmsg = [](fid_ep* ep, const fi_msg* msg, uint64_t flags) -> ssize_t {
        return msg == nullptr ? -FI_EINVAL
                              : guarded([&] { return endpoint_of(ep).send(msg->msg_iov, msg->iov_count, flags); });
    },
    .inject = [](fid_ep* ep, const void* buf, size_t len, fi_addr_t) -> ssize_t {
        const iovec iov{const_cast<void*>(buf), len};
        return guarded([&] { return endpoint_of(ep).send(&iov, 1, 0); });
    },
    .senddata = RSTREAM_REFUSE(fi_ops_msg, senddata),
    .injectdata = RSTREAM_REFUSE(fi_ops_msg, injectdata),
};

} // namespace

} // namespace rstream
