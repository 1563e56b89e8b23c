// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/address.hpp"

#include <algorithm>
#include <cstring>

namespace rsockets {

namespace {

// Copies, since the storage has another type than its contents.
template <class T> T as(const sockaddr_storage& storage) {
    T out;
    memcpy(&out, &storage, sizeof(T));
    return out;
}

template <class T> Address from(const T& in) { return {&in, sizeof(T)}; }

constexpr size_t mapped_prefix = 12;

} // namespace

Address::Address(const void* data, socklen_t size) : length(std::min<socklen_t>(size, sizeof(storage))) {
    if (length != 0) {
        memcpy(&storage, data, length);
    }
    constexpr socklen_t without_scope = 24; // SIN6_LEN_RFC2133, which the kernel accepts
    if (length >= without_scope && length < sizeof(sockaddr_in6) && family() == AF_INET6) {
        length = sizeof(sockaddr_in6);
    }
}

Address Address::any(int family) {
    if (family == AF_INET6) {
        sockaddr_in6 six{};
        six.sin6_family = AF_INET6;
        return from(six);
    }
    sockaddr_in four{};
    four.sin_family = AF_INET;
    return from(four);
}

uint16_t Address::port() const {
    // The port is at the same offset in both families.
    return ntohs(as<sockaddr_in>(storage).sin_port);
}

void Address::set_port(uint16_t port) {
    auto four = as<sockaddr_in>(storage);
    four.sin_port = htons(port);
    memcpy(&storage, &four, sizeof(four));
}

bool Address::wildcard() const {
    if (family() == AF_INET) {
        return as<sockaddr_in>(storage).sin_addr.s_addr == htonl(INADDR_ANY);
    }
    const auto six = as<sockaddr_in6>(storage);
    return IN6_IS_ADDR_UNSPECIFIED(&six.sin6_addr);
}

bool Address::v4_mapped() const {
    const auto six = as<sockaddr_in6>(storage);
    return family() == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&six.sin6_addr);
}

Address Address::bare() const {
    if (family() == AF_INET) {
        auto four = as<sockaddr_in>(storage);
        memset(four.sin_zero, 0, sizeof(four.sin_zero));
        return from(four);
    }
    auto six = as<sockaddr_in6>(storage);
    six.sin6_flowinfo = 0;
    six.sin6_scope_id = IN6_IS_ADDR_LINKLOCAL(&six.sin6_addr) ? six.sin6_scope_id : 0;
    return from(six);
}

Address Address::unmapped() const {
    if (!v4_mapped()) {
        return *this;
    }
    const auto six = as<sockaddr_in6>(storage);
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_port = six.sin6_port;
    memcpy(&four.sin_addr, &six.sin6_addr.s6_addr[mapped_prefix], sizeof(four.sin_addr));
    return from(four);
}

Address Address::for_family(int wanted) const {
    if (wanted == AF_INET) {
        return unmapped();
    }
    if (family() != AF_INET) {
        return *this;
    }
    const auto four = as<sockaddr_in>(storage);
    sockaddr_in6 six{};
    six.sin6_family = AF_INET6;
    six.sin6_port = four.sin_port;
    if (!wildcard()) {
        six.sin6_addr.s6_addr[mapped_prefix - 2] = 0xff;
        six.sin6_addr.s6_addr[mapped_prefix - 1] = 0xff;
        memcpy(&six.sin6_addr.s6_addr[mapped_prefix], &four.sin_addr, sizeof(four.sin_addr));
    }
    return from(six);
}

Address Address::wildcard_as_loopback() const {
    if (!wildcard()) {
        return *this;
    }
    if (family() == AF_INET) {
        auto four = as<sockaddr_in>(storage);
        four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        return from(four);
    }
    auto six = as<sockaddr_in6>(storage);
    six.sin6_addr = in6addr_loopback;
    return from(six);
}

void Address::give(sockaddr* to, socklen_t* capacity) const {
    if (capacity == nullptr) {
        return;
    }
    if (to != nullptr) {
        memcpy(to, &storage, std::min(*capacity, length));
    }
    *capacity = length;
}

} // namespace rsockets
