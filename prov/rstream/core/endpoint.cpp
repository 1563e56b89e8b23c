// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/core/endpoint.hpp"

#include <cerrno>
#include <chrono>
#include <utility>

#include <sys/random.h>

#include "prov/rstream/core_descriptors.hpp"

namespace rstream {

namespace {

// The verbs provider returns errno if the driver could not make a queue. soft-iWARP's does not set it, so that the
// error would be that of any earlier call of this thread.
template <class Make> int make_queue(Make&& make) {
    errno = ENOMEM;
    return make();
}

} // namespace

int CoreEndpoint::open_queue(CoreDomains& domains, const fi_info& info, size_t size) {
    info_.reset(fi_dupinfo(&info));
    if (!info_) {
        return -FI_ENOMEM;
    }
    info_->handle = info.handle;
    domains_ = &domains;
    if (const int ret = domains.take(properties_.max_domain_connections, domain_); ret != 0) {
        return ret;
    }
    fi_cq_attr attr{};
    attr.size = size;
    attr.format = FI_CQ_FORMAT_DATA;
    attr.wait_obj = FI_WAIT_FD;
    fid_cq* cq = nullptr;
    if (const int ret = make_queue([&] { return fi_cq_open(domain_.get(), &attr, &cq, nullptr); }); ret != 0) {
        return ret;
    }
    completions_.reset(cq);
    if (const int ret = fi_control(&cq->fid, FI_GETWAIT, &completions_fd_); ret != 0) {
        return ret;
    }
    close_on_exec(completions_fd_); // its members, if any, are handled when they are created
    return 0;
}

int CoreEndpoint::open(fid_eq* events, void* context) {
    fid_ep* ep = nullptr;
    int ret = fi_endpoint(domain_.get(), info_.get(), &ep, context);
    if (ret != 0) {
        return ret;
    }
    {
        const base::Guard lock(naming_);
        ep_.reset(ep);
    }
    request_used_ = info_->handle != nullptr;
    if (!properties_.queue_shows_end) {
        if ((ret = open_events()) != 0) {
            return ret;
        }
        events = events_.get();
    }
    if ((ret = fi_ep_bind(ep, &completions_->fid, FI_TRANSMIT | FI_SELECTIVE_COMPLETION)) != 0 ||
        (ret = fi_ep_bind(ep, &completions_->fid, FI_RECV)) != 0) { // every arrival completes
        return ret;
    }
    return fi_ep_bind(ep, &events->fid, 0);
}

int CoreEndpoint::open_events() {
    IdleQueues::Queue idle = domains_->idle_queues().take();
    if (idle.queue) {
        events_ = std::move(idle.queue);
        events_fd_ = idle.fd;
        return 0;
    }
    fi_eq_attr attr{};
    attr.wait_obj = FI_WAIT_FD;
    fid_eq* events = nullptr;
    int ret = fi_eq_open(fabric_, &attr, &events, nullptr);
    if (ret != 0) {
        return ret;
    }
    events_.reset(events);
    if ((ret = fi_control(&events->fid, FI_GETWAIT, &events_fd_)) == 0) {
        close_queue_on_exec(events_fd_);
    }
    return ret;
}

int CoreEndpoint::enable() {
    return make_queue([this] { return fi_enable(ep_.get()); });
}

void CoreEndpoint::close() {
    Owned<fid_ep> gone;
    {
        const base::Guard lock(naming_);
        gone = std::move(ep_);
    }
    gone.reset();
    if (events_) {
        domains_->idle_queues().give(fabric_, {std::move(events_), std::exchange(events_fd_, -1)});
    }
}

int CoreEndpoint::name(void* address, size_t* length) const {
    const base::Guard lock(naming_);
    return ep_ ? core_address(fi_getname, &ep_->fid, address, length) : -FI_EOPBADSTATE;
}

int CoreEndpoint::peer(void* address, size_t* length) const {
    const base::Guard lock(naming_);
    return ep_ ? core_address(fi_getpeer, ep_.get(), address, length) : -FI_EOPBADSTATE;
}

int CoreEndpoint::try_wait(bool completions) {
    AnyFid* fids[2] = {};
    int count = 0;
    if (completions) {
        fids[count++] = &completions_->fid;
    }
    if (events_) {
        fids[count++] = &events_->fid;
    }
    return count != 0 ? fi_trywait(fabric_, fids, count) : 0;
}

int CoreEndpoint::register_memory(const void* memory, size_t length, uint64_t access, Owned<fid_mr>& out,
                                  uint64_t flags) {
    fid_mr* mr = nullptr;
    int ret = -FI_ENOKEY;
    // Our own keys are random, so two may collide; the core then returns -FI_ENOKEY.
    for (int tries = 0; tries < 8 && ret == -FI_ENOKEY; ++tries) {
        ret = fi_mr_reg(domain_.get(), memory, length, access, 0, traits_.provider_keys ? 0 : random_key(), flags, &mr,
                        nullptr);
    }
    if (ret != 0) {
        return ret;
    }
    out.reset(mr);
    if (traits_.endpoint_mr && ((ret = fi_mr_bind(mr, &ep_->fid, 0)) != 0 || (ret = fi_mr_enable(mr)) != 0)) {
        return ret;
    }
    return 0;
}

// Not predictable by another peer of the domain.
uint64_t CoreEndpoint::random_key() const {
    uint64_t key = 0;
    if (getrandom(&key, sizeof(key), 0) != sizeof(key)) {
        key = static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    }
    const size_t bits = 8 * info_->domain_attr->mr_key_size;
    return bits >= 64 ? key : key & ((1ULL << bits) - 1);
}

} // namespace rstream
