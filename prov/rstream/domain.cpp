// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/domain.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "include/rdma/fi_ext_rstream.h"
#include "prov/rstream/endpoint.hpp"
#include "prov/rstream/log.hpp"
#include "prov/rstream/stream/stream.hpp"

namespace rstream {

namespace {
extern fi_ops domain_fid_ops;
extern fi_ops_domain domain_ops;
extern fi_ops_mr domain_mr_ops;

int replace(void*& to, size_t& to_length, const void* from, size_t length) {
    free(to);
    to = nullptr;
    to_length = 0;
    if (from == nullptr || length == 0) {
        return 0;
    }
    to = malloc(length);
    if (to == nullptr) {
        return -FI_ENOMEM;
    }
    memcpy(to, from, length);
    to_length = length;
    return 0;
}

// libfabric's own settings; any of them disables its cache.
bool registrations_are_cached() {
    const auto is = [](const char* name, const char* value) {
        const char* set = getenv(name);
        return set != nullptr && strcmp(set, value) == 0;
    };
    return !is("FI_MR_CACHE_MAX_COUNT", "0") && !is("FI_MR_CACHE_MAX_SIZE", "0") &&
           !is("FI_MR_CACHE_MONITOR", "disabled");
}
} // namespace

Domain::Domain(Fabric& fabric) : fid_domain{}, linger_(fabric.params().linger), fabric_(fabric) {}

int Domain::control(int command, const void* arg) {
    if (command != FI_OPT_RSTREAM_LINGER) {
        return -FI_ENOSYS;
    }
    constexpr size_t most_ms = 3600000;
    const auto* ms = static_cast<const size_t*>(arg);
    if (ms == nullptr || *ms > most_ms) {
        return -FI_EINVAL;
    }
    linger_.store(std::min(*ms, fabric_.params().linger)); // what the administrator has set stays the limit
    return 0;
}

Domain::~Domain() = default;

int Domain::open(Fabric& fabric, const fi_info& info, void* context, fid_domain** out) {
    struct Deleter {
        void operator()(Domain* d) const { delete d; }
    };
    std::unique_ptr<Domain, Deleter> domain(new Domain(fabric));
    const char* name = info.domain_attr != nullptr ? info.domain_attr->name : nullptr;
    int ret = core_domain_info(fabric.name().core, fabric.name().name, name, info.addr_format, domain->core_info_);
    if (ret == -FI_ENODATA) { // a domain has no fixed format; endpoints have their own
        ret = core_domain_info(fabric.name().core, fabric.name().name, name, FI_FORMAT_UNSPEC, domain->core_info_);
    }
    if (ret != 0) {
        RSTREAM_WARN(FI_LOG_DOMAIN, "core %s has no domain %s: %s\n", fabric.name().core.c_str(),
                     name != nullptr ? name : "(any)", fi_strerror(-ret));
        return ret;
    }
    if ((ret = domain->cores_.open(fabric.core(), *domain->core_info_)) != 0) {
        RSTREAM_WARN(FI_LOG_DOMAIN, "core domain %s: %s\n", domain->core_info_->domain_attr->name, fi_strerror(-ret));
        return ret;
    }
    if ((domain->core_info_->domain_attr->mr_mode & FI_MR_PROV_KEY) != 0 && registrations_are_cached()) {
        RSTREAM_INFO(FI_LOG_MR, "the core may let peers read and write all that is registered, unless "
                                "FI_MR_CACHE_MAX_COUNT is 0: see SECURITY in fi_rstream(7)\n");
    }
    domain->fid.fclass = FI_CLASS_DOMAIN;
    domain->fid.context = context;
    domain->fid.ops = &domain_fid_ops;
    domain->ops = &domain_ops;
    domain->mr = &domain_mr_ops;
    fabric.add(domain.get());
    fabric.retain();
    *out = domain.release();
    return 0;
}

int Domain::core_info_for(const fi_info& info, Info& out) const {
    Info core(fi_dupinfo(core_info_.get()));
    if (!core) {
        return -FI_ENOMEM;
    }
    core->addr_format = info.addr_format;
    if (replace(core->src_addr, core->src_addrlen, info.src_addr, info.src_addrlen) != 0 ||
        replace(core->dest_addr, core->dest_addrlen, info.dest_addr, info.dest_addrlen) != 0) {
        return -FI_ENOMEM;
    }
    out = std::move(core);
    return 0;
}

int Domain::cm_data_size(size_t& size) {
    const std::lock_guard lock(mutex_);
    if (cm_data_size_ == 0) {
        // Queried on a passive endpoint: for an active one some cores need the route to its peer. Without an address:
        // that of the domain's info may not be bindable, as a link-local one.
        Info nowhere(fi_dupinfo(core_info_.get()));
        if (!nowhere || replace(nowhere->src_addr, nowhere->src_addrlen, nullptr, 0) != 0 ||
            replace(nowhere->dest_addr, nowhere->dest_addrlen, nullptr, 0) != 0) {
            return -FI_ENOMEM;
        }
        fid_pep* pep = nullptr;
        if (const int ret = fi_passive_ep(fabric_.core(), nowhere.get(), &pep, nullptr); ret != 0) {
            return ret;
        }
        const Owned<fid_pep> probe(pep);
        size_t found = 0;
        size_t length = sizeof(found);
        if (const int ret = fi_getopt(&pep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &found, &length); ret != 0) {
            return ret;
        }
        cm_data_size_ = found;
    }
    size = cm_data_size_;
    return 0;
}

void Domain::linger(std::unique_ptr<Stream> connection) {
    const std::lock_guard lock(mutex_);
    lingering_.push_back(std::move(connection));
    fabric_.lingering_changed(1);
}

void Domain::reap() {
    std::list<std::unique_ptr<Stream>> done; // closed without our lock
    const std::lock_guard lock(mutex_);
    for (auto it = lingering_.begin(); it != lingering_.end();) {
        (*it)->progress();
        if (auto here = it++; (*here)->linger_is_over()) {
            done.splice(done.end(), lingering_, here);
            fabric_.lingering_changed(-1);
        }
    }
}

bool Domain::finish_lingering() {
    using Clock = std::chrono::steady_clock;
    const auto deadline = Clock::now() + std::chrono::milliseconds(linger_.load());
    for (;;) {
        reap();
        std::list<std::unique_ptr<Stream>> one; // no other thread ends it while this one waits
        bool more = false;
        {
            const std::lock_guard lock(mutex_);
            if (lingering_.empty()) {
                return true;
            }
            one.splice(one.end(), lingering_, lingering_.begin());
            more = !lingering_.empty();
        }
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
        if (left > 0) {
            // Others may be done sooner than the first; that costs them at most 10 ms.
            one.front()->wait_for_core(std::min<int64_t>(left, more ? 10 : left));
        }
        const std::lock_guard lock(mutex_);
        lingering_.splice(lingering_.end(), one);
        if (left <= 0) {
            return false;
        }
    }
}

// A program that exits with open endpoints calls this for the data of those that it has closed: nothing makes progress
// for them afterwards.
int Domain::close() {
    if (users_.load(std::memory_order_acquire) != 0) {
        finish_lingering();
        return -FI_EBUSY;
    }
    fabric_.remove(this); // first: after this no other thread reaps
    if (!finish_lingering()) {
        RSTREAM_WARN(FI_LOG_DOMAIN, "%zu peers have not taken all that was sent to them: closing nevertheless\n",
                     lingering_.size());
        fabric_.lingering_changed(-static_cast<ptrdiff_t>(lingering_.size()));
        lingering_.clear();
    }
    Fabric& fabric = fabric_;
    delete this;
    fabric.release();
    return 0;
}

namespace {

Domain& domain_of(fid_domain* d) { return *object_of<Domain>(d); }

fi_ops_domain domain_ops = {
    .size = sizeof(fi_ops_domain),
    .av_open = RSTREAM_REFUSE(fi_ops_domain, av_open),
    .cq_open = RSTREAM_REFUSE(fi_ops_domain, cq_open),
    .endpoint = [](fid_domain* d, fi_info* info, fid_ep** ep, void* context) -> int {
        return guarded([&] {
            return info == nullptr || ep == nullptr ? -FI_EINVAL : Endpoint::open(domain_of(d), *info, context, ep);
        });
    },
    .scalable_ep = RSTREAM_REFUSE(fi_ops_domain, scalable_ep),
    .cntr_open = RSTREAM_REFUSE(fi_ops_domain, cntr_open),
    .poll_open = RSTREAM_REFUSE(fi_ops_domain, poll_open),
    .stx_ctx = RSTREAM_REFUSE(fi_ops_domain, stx_ctx),
    .srx_ctx = RSTREAM_REFUSE(fi_ops_domain, srx_ctx),
    .query_atomic = RSTREAM_REFUSE(fi_ops_domain, query_atomic),
    .query_collective = RSTREAM_REFUSE(fi_ops_domain, query_collective),
    .endpoint2 = [](fid_domain* d, fi_info* info, fid_ep** ep, uint64_t flags, void* context) -> int {
        return flags != 0 ? -FI_EINVAL : domain_ops.endpoint(d, info, ep, context);
    },
};

fi_ops_mr domain_mr_ops = {
    .size = sizeof(fi_ops_mr),
    .reg = RSTREAM_REFUSE(fi_ops_mr, reg),
    .regv = RSTREAM_REFUSE(fi_ops_mr, regv),
    .regattr = RSTREAM_REFUSE(fi_ops_mr, regattr),
};

fi_ops domain_fid_ops = {
    .size = sizeof(fi_ops),
    .close = [](AnyFid* f) { return guarded([&] { return object_of<Domain, fid_domain>(f)->close(); }); },
    .bind = RSTREAM_REFUSE(fi_ops, bind),
    .control = [](AnyFid* f, int command, void* arg) -> int {
        return object_of<Domain, fid_domain>(f)->control(command, arg);
    },
    .ops_open = RSTREAM_REFUSE(fi_ops, ops_open),
    .tostr = nullptr,
    .ops_set = nullptr,
};

} // namespace

} // namespace rstream
