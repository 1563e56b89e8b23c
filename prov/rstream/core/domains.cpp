// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/core/domains.hpp"

#include <algorithm>

#include "prov/rstream/core_descriptors.hpp"

namespace rstream {

namespace {

// libfabric 1.19 and later: a domain of tcp has descriptors of its own, which can be found only as members of a queue
// of that domain. Those of connections are handled when they are connected, but a program that listens may execute
// another one before it has any.
void close_domain_on_exec(fid_domain* domain) {
    fi_cq_attr attr{};
    attr.size = 1;
    attr.format = FI_CQ_FORMAT_DATA;
    attr.wait_obj = FI_WAIT_FD;
    fid_cq* cq = nullptr;
    if (fi_cq_open(domain, &attr, &cq, nullptr) != 0) {
        return; // no connection of this domain can be made, either
    }
    const Owned<fid_cq> queue(cq);
    if (int fd = -1; fi_control(&cq->fid, FI_GETWAIT, &fd) == 0) {
        close_queue_on_exec(fd);
    }
}

} // namespace

CoreDomains::Place::~Place() {
    if (domains_ != nullptr) {
        domains_->leave(group_);
    }
}

int CoreDomains::open_domain(Owned<fid_domain>& out) const {
    fid_domain* domain = nullptr;
    const int ret = fi_domain(fabric_, info_.get(), &domain, nullptr);
    if (ret == 0) {
        out.reset(domain);
        close_domain_on_exec(domain);
    }
    return ret;
}

int CoreDomains::open(fid_fabric* fabric, const fi_info& info) {
    fabric_ = fabric;
    info_.reset(fi_dupinfo(&info));
    if (!info_) {
        return -FI_ENOMEM;
    }
    Group first;
    const int ret = open_domain(first.domain);
    if (ret == 0) {
        groups_.push_back(std::move(first));
    }
    return ret;
}

int CoreDomains::take(size_t max, Place& place) {
    std::list<Group> opened;
    std::unique_lock lock(mutex_);
    auto group = std::find_if(groups_.begin(), groups_.end(),
                              [max](const Group& one) { return max == 0 || one.connections < max; });
    if (group == groups_.end()) {
        lock.unlock(); // not held during a call of the core
        opened.emplace_back();
        if (const int ret = open_domain(opened.front().domain); ret != 0) {
            return ret;
        }
        lock.lock();
        groups_.splice(groups_.end(), opened);
        group = std::prev(groups_.end());
    }
    ++group->connections;
    place.domains_ = this;
    place.group_ = group;
    return 0;
}

void CoreDomains::leave(std::list<Group>::iterator group) {
    std::list<Group> closed; // destroyed without the lock
    const std::lock_guard lock(mutex_);
    if (--group->connections == 0 && group != groups_.begin()) {
        closed.splice(closed.end(), groups_, group);
    }
}

size_t CoreDomains::count() {
    const std::lock_guard lock(mutex_);
    return groups_.size();
}

} // namespace rstream
