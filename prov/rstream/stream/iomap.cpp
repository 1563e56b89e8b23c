// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/stream/iomap.hpp"

#include <algorithm>
#include <utility>

#include "prov/rstream/wire/limits.hpp"

namespace rstream {

void Iomap::agree(size_t kept_by_peer) {
    if (offered_ != 0 || kept_by_peer != 0) {
        maps_ = std::make_unique<wire::Maps>(offered_, std::min<size_t>(kept_by_peer, wire::max_maps));
    }
}

int Iomap::claim(uint64_t& offset, size_t length, bool remote) {
    if (!remote) {
        offset = offset == wire::Maps::any ? 0 : offset; // it is never used
        return 0;
    }
    if (!maps_) {
        return -FI_ENOSPC;
    }
    switch (maps_->claim(offset, length)) {
    case wire::Maps::Claim::full:
        return -FI_ENOSPC;
    case wire::Maps::Claim::taken:
        return -FI_EADDRINUSE;
    case wire::Maps::Claim::made:
        break;
    }
    return 0;
}

void Iomap::unclaim(uint64_t offset, bool remote) {
    if (remote) {
        maps_->forget(offset);
    }
}

void Iomap::add(const void* buffer, size_t length, uint64_t offset, bool remote, uint64_t address, Owned<fid_mr> mr) {
    const uint64_t key = mr ? fi_mr_key(mr.get()) : 0;
    {
        const base::Guard lock(mutex_);
        regions_.push_back({buffer, length, offset, remote, false, std::move(mr)});
    }
    if (remote) {
        maps_->announce(offset, address, key);
    }
}

bool Iomap::released(const Region& region, bool awaited, bool over) {
    if (!region.remote) {
        return true;
    }
    if (!maps_->withdraw(region.offset, awaited && !over) && !over) {
        return false;
    }
    maps_->forget(region.offset);
    return true;
}

int Iomap::remove(const void* buffer, size_t length, bool awaited, bool over) {
    Owned<fid_mr> mr; // closed without our lock
    const base::Guard lock(mutex_);
    const auto fits = [&](const Region& r) { return r.buffer == buffer && r.length == length; };
    // A removal in progress takes precedence over a second iomap of the same memory.
    auto found = std::find_if(regions_.begin(), regions_.end(), [&](const Region& r) { return fits(r) && r.removing; });
    if (found == regions_.end()) {
        found = std::find_if(regions_.begin(), regions_.end(), fits);
    }
    if (found == regions_.end()) {
        return -FI_EINVAL;
    }
    found->removing = true;
    if (!released(*found, awaited, over)) {
        return -FI_EAGAIN;
    }
    mr = std::move(found->mr);
    regions_.erase(found);
    return 0;
}

bool Iomap::remove_all(bool over) {
    std::vector<Region> gone; // closed without our lock
    const base::Guard lock(mutex_);
    std::vector<Region> kept;
    for (Region& region : regions_) {
        (released(region, true, over) ? gone : kept).push_back(std::move(region));
    }
    regions_.swap(kept);
    return regions_.empty();
}

void Iomap::drop_all() {
    std::vector<Region> gone; // closed without our lock
    const base::Guard lock(mutex_);
    gone.swap(regions_);
}

} // namespace rstream
