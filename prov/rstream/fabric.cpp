// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/fabric.hpp"

#include <algorithm>

#include "prov/rstream/domain.hpp"
#include "prov/rstream/endpoint.hpp"
#include "prov/rstream/eq.hpp"
#include "prov/rstream/log.hpp"
#include "prov/rstream/passive.hpp"

namespace rstream {

namespace {
extern fi_ops fabric_fid_ops;
extern fi_ops_fabric fabric_ops;
} // namespace

int Fabric::open(const fi_fabric_attr& attr, void* context, fid_fabric** out) {
    std::unique_ptr<Fabric> holder(new Fabric);
    Fabric& fabric = *holder;
    fabric.params_ = Params::load();
    const FabricName wanted = FabricName::parse(attr.name);
    const auto cores = wanted.core.empty() ? fabric.params_.cores : std::vector{wanted.core};
    int ret = -FI_ENODATA;
    for (const std::string& core : cores) {
        Info info;
        if ((ret = core_domain_info(core, wanted.name, nullptr, FI_FORMAT_UNSPEC, info)) != 0) {
            continue;
        }
        fid_fabric* opened = nullptr;
        if ((ret = fi_fabric(info->fabric_attr, &opened, nullptr)) != 0) {
            continue;
        }
        fabric.core_.reset(opened);
        fabric.name_ = {core, info->fabric_attr->name};
        break;
    }
    if (ret != 0) {
        RSTREAM_WARN(FI_LOG_FABRIC, "fabric %s: %s\n", attr.name != nullptr ? attr.name : "(any)", fi_strerror(-ret));
        return ret;
    }
    fabric.fid.fclass = FI_CLASS_FABRIC;
    fabric.fid.context = context;
    fabric.fid.ops = &fabric_fid_ops;
    fabric.ops = &fabric_ops;
    fabric.api_version = attr.api_version;
    *out = holder.release();
    return 0;
}

int Fabric::close() {
    if (users_.load(std::memory_order_acquire) != 0) {
        return -FI_EBUSY;
    }
    delete this;
    return 0;
}

void Fabric::add(PassiveEndpoint* passive) {
    const std::lock_guard lock(mutex_);
    passives_.push_back(passive);
}

void Fabric::remove(PassiveEndpoint* passive) {
    const std::lock_guard lock(mutex_);
    std::erase(passives_, passive);
}

bool Fabric::refuse(const ConnectionRequest& request) {
    const std::lock_guard lock(mutex_);
    if (std::find(passives_.begin(), passives_.end(), request.passive) == passives_.end()) {
        return false;
    }
    request.passive->refuse(request);
    return true;
}

void Fabric::add(Domain* domain) {
    const std::lock_guard lock(mutex_);
    domains_.push_back(domain);
}

void Fabric::remove(Domain* domain) {
    const std::lock_guard lock(mutex_);
    std::erase(domains_, domain);
}

void Fabric::reap_lingering() {
    if (lingering_.load(std::memory_order_relaxed) == 0) {
        return;
    }
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock.owns_lock()) { // else another thread is reaping
        for (Domain* domain : domains_) {
            domain->reap();
        }
    }
}

int Fabric::try_wait(AnyFid** fids, int count) {
    if (count < 0 || (fids == nullptr && count != 0)) {
        return -FI_EINVAL;
    }
    reap_lingering();
    for (int i = 0; i < count; ++i) {
        int ret = -FI_EINVAL;
        if (fids[i] == nullptr) {
            return ret;
        }
        switch (fids[i]->fclass) {
        case FI_CLASS_EQ:
            ret = object_of<EventQueue, fid_eq>(fids[i])->try_wait();
            break;
        case FI_CLASS_EP:
            ret = object_of<Endpoint, fid_ep>(fids[i])->try_wait();
            break;
        default:
            break;
        }
        if (ret != 0) {
            return ret;
        }
    }
    return 0;
}

namespace {

Fabric& fabric_of(fid_fabric* f) { return *object_of<Fabric>(f); }

fi_ops_fabric fabric_ops = {
    .size = sizeof(fi_ops_fabric),
    .domain = [](fid_fabric* f, fi_info* info, fid_domain** domain, void* context) -> int {
        return guarded([&] {
            return info == nullptr || domain == nullptr ? -FI_EINVAL
                                                        : Domain::open(fabric_of(f), *info, context, domain);
        });
    },
    .passive_ep = [](fid_fabric* f, fi_info* info, fid_pep** pep, void* context) -> int {
        return guarded([&] {
            return info == nullptr || pep == nullptr ? -FI_EINVAL
                                                     : PassiveEndpoint::open(fabric_of(f), *info, context, pep);
        });
    },
    .eq_open = [](fid_fabric* f, fi_eq_attr* attr, fid_eq** eq, void* context) -> int {
        return guarded([&] {
            if (eq == nullptr) {
                return -FI_EINVAL;
            }
            const fi_eq_attr defaults{};
            EventQueue* queue = nullptr;
            const int ret = EventQueue::open(fabric_of(f), attr != nullptr ? *attr : defaults, context, &queue);
            if (ret == 0) {
                fabric_of(f).retain();
                *eq = queue;
            }
            return ret;
        });
    },
    .wait_open = RSTREAM_REFUSE(fi_ops_fabric, wait_open),
    .trywait = [](fid_fabric* f, AnyFid** fids, int count) -> int {
        return guarded([&] { return fabric_of(f).try_wait(fids, count); });
    },
    .domain2 = [](fid_fabric* f, fi_info* info, fid_domain** domain, uint64_t flags, void* context) -> int {
        return flags != 0 ? -FI_EINVAL : fabric_ops.domain(f, info, domain, context);
    },
};

fi_ops fabric_fid_ops = {
    .size = sizeof(fi_ops),
    .close = [](AnyFid* f) { return guarded([&] { return object_of<Fabric, fid_fabric>(f)->close(); }); },
    .bind = RSTREAM_REFUSE(fi_ops, bind),
    .control = RSTREAM_REFUSE(fi_ops, control),
    .ops_open = RSTREAM_REFUSE(fi_ops, ops_open),
    .tostr = nullptr,
    .ops_set = nullptr,
};

} // namespace

} // namespace rstream
