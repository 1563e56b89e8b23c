// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/common/address.hpp"

#include <algorithm>
#include <cstring>
#include <memory>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

#include "util/common/failure.hpp"

namespace util {

Address::Address(const sockaddr* address, socklen_t length) : length_(std::min<socklen_t>(length, sizeof(storage_))) {
    memcpy(&storage_, address, length_);
}

bool Address::is_wildcard() const {
    if (family() == AF_INET) {
        return reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr.s_addr == htonl(INADDR_ANY);
    }
    return family() == AF_INET6 &&
           memcmp(&reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr, &in6addr_any, sizeof(in6_addr)) == 0;
}

bool Address::is_loopback() const {
    if (family() == AF_INET) {
        return ntohl(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    }
    return family() == AF_INET6 && memcmp(&reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr,
                                          &in6addr_loopback, sizeof(in6_addr)) == 0;
}

uint16_t Address::port() const {
    switch (family()) {
    case AF_INET:
        return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
    case AF_INET6:
        return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port);
    default:
        return gid_port_;
    }
}

std::string Address::host() const {
    if (is_gid()) {
        return gid_;
    }
    char text[NI_MAXHOST] = "";
    if (length_ == 0 || getnameinfo(get(), length_, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) {
        return "an unknown address";
    }
    return text;
}

std::string Address::text() const {
    return family() == AF_INET ? fmt::format("{}:{}", host(), port()) : fmt::format("[{}]:{}", host(), port());
}

namespace {

// AF_UNSPEC: a name.
int numeric_family(const std::string& node) {
    addrinfo hints{};
    hints.ai_flags = AI_NUMERICHOST;
    addrinfo* list = nullptr;
    if (node.empty() || getaddrinfo(node.c_str(), nullptr, &hints, &list) != 0) {
        return AF_UNSPEC;
    }
    const int family = list->ai_family;
    freeaddrinfo(list);
    return family;
}

} // namespace

int server_family(const std::string& server, const std::string& local) {
    return numeric_family(server) == AF_UNSPEC ? numeric_family(local) : AF_UNSPEC;
}

Address resolve_address(const std::string& option, const std::string& node, uint16_t port, AddressFormat format,
                        int family) {
    if (format == AddressFormat::gid) {
        in6_addr bytes{};
        if (inet_pton(AF_INET6, node.c_str(), &bytes) != 1) {
            fail("{} {}: not a GID; it is written like an IPv6 address, for example fe80::2:c903:0:1", option, node);
        }
        Address address;
        address.gid_ = node;
        address.gid_port_ = port;
        return address;
    }
    addrinfo hints{};
    hints.ai_family = format == AddressFormat::ip ? AF_INET : format == AddressFormat::ipv6 ? AF_INET6 : family;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = format == AddressFormat::ip || format == AddressFormat::ipv6 ? AI_NUMERICHOST : 0;
    addrinfo* list = nullptr;
    const int ret = node.empty() ? EAI_NONAME : getaddrinfo(node.c_str(), std::to_string(port).c_str(), &hints, &list);
    if (ret != 0) {
        const char* wanted = format == AddressFormat::ip     ? "an IPv4 address"
                             : format == AddressFormat::ipv6 ? "an IPv6 address"
                             : family == AF_INET             ? "a host name or IPv4 address"
                             : family == AF_INET6            ? "a host name or IPv6 address"
                                                             : "a host name or IP address";
        fail("{} {}: not {} that is known here ({})", option, node.empty() ? "''" : node, wanted,
             ret == EAI_SYSTEM ? strerror(errno) : gai_strerror(ret));
    }
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(list, freeaddrinfo);
    return {list->ai_addr, list->ai_addrlen};
}

} // namespace util
