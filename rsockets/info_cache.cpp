// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/info_cache.hpp"

#include <algorithm>
#include <cstring>

namespace rsockets {

namespace {

constexpr auto max_age = std::chrono::seconds(1);
constexpr size_t max_entries = 16;

Address without_port(Address address) {
    if (address.set()) {
        address.set_port(0);
    }
    return address;
}

bool same(const Address& a, const Address& b) {
    return a.length == b.length && memcmp(&a.storage, &b.storage, a.length) == 0;
}

} // namespace

base::Info InfoCache::find(const Address& to, const Address& from, Clock::time_point now) {
    const Guard lock(mutex_);
    const auto entry = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& one) {
        return now - one.asked < max_age && same(one.to, without_port(to)) && same(one.from, without_port(from));
    });
    base::Info copy(entry != entries_.end() ? fi_dupinfo(entry->info.get()) : nullptr);
    if (copy) {
        memcpy(copy->dest_addr, to.get(), std::min<size_t>(copy->dest_addrlen, to.length));
    }
    return copy;
}

void InfoCache::keep(const Address& to, const Address& from, const fi_info& found, Clock::time_point now) {
    // If the core chooses the source port at once, the port is for one connection only.
    if (found.dest_addr == nullptr || found.dest_addrlen != to.length ||
        (found.src_addr != nullptr && !from.set() &&
         Address(found.src_addr, static_cast<socklen_t>(found.src_addrlen)).port() != 0)) {
        return;
    }
    base::Info copy(fi_dupinfo(&found)); // the first only: a copy has no next
    if (!copy) {
        return;
    }
    const Guard lock(mutex_);
    std::erase_if(entries_, [&](const Entry& one) {
        return now - one.asked >= max_age || (same(one.to, without_port(to)) && same(one.from, without_port(from)));
    });
    if (entries_.size() < max_entries) {
        entries_.push_back({without_port(to), without_port(from), std::move(copy), now});
    }
}

void InfoCache::forget() {
    const Guard lock(mutex_);
    entries_.clear();
}

} // namespace rsockets
