// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/fabric/other_devices.hpp"

#include <algorithm>

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include "preload/fabric/rdma_interfaces.hpp"

namespace preload::fabric {

namespace {

constexpr HostAddress in6_loopback{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};

constexpr uint64_t pause_ns = 10000000000U; // a thousand streams may fail at once

rendezvous::Address address_of(const sockaddr& socket) {
    sockaddr_storage storage{};
    if (socket.sa_family == AF_INET) {
        reinterpret_cast<sockaddr_in&>(storage) = reinterpret_cast<const sockaddr_in&>(socket);
    } else {
        reinterpret_cast<sockaddr_in6&>(storage) = reinterpret_cast<const sockaddr_in6&>(socket);
    }
    rendezvous::Address made = rendezvous::Address::from(storage).value_or(rendezvous::Address());
    made.port = 0;
    return made;
}

bool is_of_one_link(const sockaddr& socket) {
    return socket.sa_family == AF_INET6 &&
           IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6&>(socket).sin6_addr);
}

bool is_loopback(const rendezvous::Address& address) {
    constexpr uint8_t net = 127;
    return address.is_ipv4() ? address.bytes[12] == net : address == rendezvous::Address{in6_loopback, address.port};
}

} // namespace

OtherDevices::Found OtherDevices::find_devices() {
    Found found;
    ifaddrs* all = nullptr;
    if (getifaddrs(&all) != 0) {
        return found;
    }
    const RdmaInterfaces interfaces;
    for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
        if (one->ifa_addr != nullptr && (one->ifa_addr->sa_family == AF_INET || one->ifa_addr->sa_family == AF_INET6) &&
            (one->ifa_flags & IFF_UP) != 0 && !is_of_one_link(*one->ifa_addr) && interfaces.has(one->ifa_name)) {
            found.push_back(address_of(*one->ifa_addr));
        }
    }
    freeifaddrs(all);
    return found;
}

OtherAddresses OtherDevices::of_this_host(const rendezvous::Address& own, uint64_t now) {
    OtherAddresses found{};
    if (is_loopback(own)) {
        return found;
    }
    if (is_due_ && now >= again_at_) {
        is_due_ = false;
        again_at_ = now + pause_ns;
        own_ = find_devices_();
    }
    size_t count = 0;
    for (const rendezvous::Address& one : own_) {
        if (count < found.size() && one.bytes != own.bytes && one.is_ipv4() == own.is_ipv4()) {
            found[count++] = one.bytes;
        }
    }
    return found;
}

const OtherDevices::Peer* OtherDevices::find(const rendezvous::Address& peer) const {
    const auto* const end = peers_.begin() + static_cast<ptrdiff_t>(std::min(made_, peers_.size()));
    const auto* const found =
        std::find_if(peers_.begin(), end, [&](const Peer& one) { return one.address == peer.bytes; });
    return found != end ? found : nullptr;
}

void OtherDevices::note_proved(const rendezvous::Address& peer, const OtherAddresses& others,
                               const rendezvous::Address* via, uint64_t now) {
    const Peer* known = find(peer);
    Peer& one = known != nullptr ? peers_[static_cast<size_t>(known - peers_.data())] : peers_[made_++ % peers_.size()];
    if (known == nullptr) {
        one = {peer.bytes, {}, {}, 0};
    }
    one.others = others;
    if (via != nullptr) {
        one.preferred = via->bytes;
        one.preferred_until = now + preferred_for_ns;
    }
}

std::vector<rendezvous::Address> OtherDevices::targets(const rendezvous::Address& peer, uint64_t now) const {
    std::vector<rendezvous::Address> made{peer};
    if (const Peer* known = find(peer); known != nullptr) {
        for (const HostAddress& other : known->others) {
            const rendezvous::Address address{other, peer.port};
            if (other != HostAddress{} && other != peer.bytes && address.is_ipv4() == peer.is_ipv4() &&
                !is_loopback(address)) {
                made.push_back(address);
            }
        }
        if (now < known->preferred_until) {
            const auto preferred = std::find_if(made.begin(), made.end(),
                                                [&](const auto& address) { return address.bytes == known->preferred; });
            if (preferred != made.end()) {
                std::rotate(made.begin(), preferred, preferred + 1);
            }
        }
    }
    return made;
}

bool OtherDevices::is_of(const rendezvous::Address& from, const rendezvous::Address& peer) const {
    const std::vector<rendezvous::Address> all = targets(peer, UINT64_MAX);
    return std::any_of(all.begin(), all.end(), [&](const auto& address) { return address.bytes == from.bytes; });
}

} // namespace preload::fabric
