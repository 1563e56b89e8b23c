// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/ways.hpp"

#include <algorithm>
#include <cstring>

namespace rsockets {

namespace {

constexpr auto max_age = std::chrono::seconds(1);
constexpr size_t max_ways = 16;

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

base::Info Ways::find(const Address& to, const Address& from, Clock::time_point now) {
    const Guard lock(mutex_);
    const auto way = std::find_if(ways_.begin(), ways_.end(), [&](const Way& one) {
        return now - one.asked < max_age && same(one.to, without_port(to)) && same(one.from, without_port(from));
    });
    base::Info copy(way != ways_.end() ? fi_dupinfo(way->info.get()) : nullptr);
    if (copy) {
        memcpy(copy->dest_addr, to.get(), std::min<size_t>(copy->dest_addrlen, to.length));
    }
    return copy;
}

void Ways::keep(const Address& to, const Address& from, const fi_info& found, Clock::time_point now) {
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
    std::erase_if(ways_, [&](const Way& one) {
        return now - one.asked >= max_age || (same(one.to, without_port(to)) && same(one.from, without_port(from)));
    });
    if (ways_.size() < max_ways) {
        ways_.push_back({without_port(to), without_port(from), std::move(copy), now});
    }
}

void Ways::forget() {
    const Guard lock(mutex_);
    ways_.clear();
}

} // namespace rsockets
