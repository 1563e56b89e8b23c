// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/core/domains.hpp"

#include <algorithm>

namespace rstream {

CoreDomains::Place::~Place() {
    if (domains_ != nullptr) {
        domains_->leave(group_);
    }
}

int CoreDomains::open_domain(Owned<fid_domain>& out) const {
    fid_domain* domain = nullptr;
    const int ret = fi_domain(fabric_, info_.get(), &domain, nullptr);
    out.reset(ret == 0 ? domain : nullptr);
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
