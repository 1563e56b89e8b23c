// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/kernel_options.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <netinet/in.h>
#include <netinet/tcp.h>

namespace rsockets {

namespace {

constexpr size_t largest_value = 256;

// Options that would have to change what is sent or received (filters, MD5 signatures, time stamps, urgent data) are
// not here: a program that asks for one is told that there is none.
constexpr int socket_options[] = {
    SO_TYPE,      SO_DOMAIN,       SO_PROTOCOL,         SO_REUSEADDR, SO_REUSEPORT, SO_KEEPALIVE, SO_LINGER,
    SO_OOBINLINE, SO_RCVTIMEO,     SO_SNDTIMEO,         SO_RCVLOWAT,  SO_SNDLOWAT,  SO_PRIORITY,  SO_BROADCAST,
    SO_DONTROUTE, SO_NO_CHECK,     SO_BUSY_POLL,        SO_MARK,      SO_DEBUG,     SO_PEERNAME,  SO_TIMESTAMP,
    SO_COOKIE,    SO_INCOMING_CPU, SO_INCOMING_NAPI_ID, SO_MEMINFO,   SO_PASSCRED,  SO_PEERCRED,  SO_PEERSEC,
    SO_RXQ_OVFL,  SO_WIFI_STATUS,  SO_MAX_PACING_RATE,
};
constexpr int tcp_options[] = {
    TCP_NODELAY,     TCP_CORK,         TCP_MAXSEG,       TCP_QUICKACK,      TCP_KEEPIDLE,
    TCP_KEEPINTVL,   TCP_KEEPCNT,      TCP_SYNCNT,       TCP_LINGER2,       TCP_DEFER_ACCEPT,
    TCP_CONGESTION,  TCP_WINDOW_CLAMP, TCP_USER_TIMEOUT, TCP_NOTSENT_LOWAT, TCP_THIN_LINEAR_TIMEOUTS,
    TCP_THIN_DUPACK, TCP_FASTOPEN,
};
constexpr int ip_options[] = {IP_TOS,     IP_TTL,    IP_MTU_DISCOVER, IP_FREEBIND, IP_BIND_ADDRESS_NO_PORT,
                              IP_RECVTOS, IP_RECVERR};
constexpr int ipv6_options[] = {IPV6_V6ONLY,       IPV6_TCLASS,  IPV6_UNICAST_HOPS,
                                IPV6_MTU_DISCOVER, IPV6_RECVERR, IPV6_RECVTCLASS};

template <size_t n> bool among(const int (&names)[n], int name) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

} // namespace

bool KernelOptions::known(int level, int name) {
    switch (level) {
    case SOL_SOCKET:
        return among(socket_options, name);
    case IPPROTO_TCP:
        return among(tcp_options, name);
    case IPPROTO_IP:
        return among(ip_options, name);
    case IPPROTO_IPV6:
        return among(ipv6_options, name);
    default:
        return false;
    }
}

int KernelOptions::set(int level, int name, const void* value, socklen_t length) {
    const Descriptor scratch(::socket(family_, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!scratch.open()) {
        return errno;
    }
    if (::setsockopt(scratch.get(), level, name, value, length) != 0) {
        return errno;
    }
    if (!known(level, name)) {
        return ENOPROTOOPT;
    }
    std::vector<char> effective(largest_value);
    socklen_t size = largest_value;
    if (::getsockopt(scratch.get(), level, name, effective.data(), &size) != 0) {
        return 0; // cannot be asked for, then
    }
    effective.resize(size);
    values_[{level, name}] = std::move(effective);
    return 0;
}

int KernelOptions::get(int level, int name, void* value, socklen_t* length) const {
    const Descriptor scratch = socket({{level, name}});
    if (!scratch.open()) {
        return errno;
    }
    if (::getsockopt(scratch.get(), level, name, value, length) != 0) {
        return errno;
    }
    return known(level, name) ? 0 : ENOPROTOOPT;
}

Descriptor KernelOptions::socket(std::initializer_list<std::pair<int, int>> names) const {
    Descriptor made(::socket(family_, SOCK_STREAM | SOCK_CLOEXEC, 0));
    for (const auto& name : names) {
        if (const auto found = values_.find(name); made.open() && found != values_.end()) {
            (void)::setsockopt(made.get(), name.first, name.second, found->second.data(),
                               static_cast<socklen_t>(found->second.size()));
        }
    }
    return made;
}

} // namespace rsockets
