// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/preload/eligible.hpp"

#include <netinet/tcp.h>

#include "preload/rules/rules.hpp"
#include "rsockets/preload/real.hpp"

namespace preload {

namespace {

int option(int fd, int name) {
    int value = -1;
    socklen_t length = sizeof(value);
    return real::getsockopt(fd, SOL_SOCKET, name, &value, &length) == 0 ? value : -1;
}

} // namespace

bool eligible_socket(int fd, const char*& reason) {
    const int domain = option(fd, SO_DOMAIN);
    const int type = option(fd, SO_TYPE);
    const int protocol = option(fd, SO_PROTOCOL);
    if ((domain != AF_INET && domain != AF_INET6) || type != SOCK_STREAM || protocol != IPPROTO_TCP) {
        reason = "not TCP";
        return false;
    }
    tcp_info info{};
    socklen_t length = sizeof(info);
    if (real::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0 || info.tcpi_state != TCP_CLOSE) {
        reason = "the kernel's already";
        return false;
    }
    const Decision decision = Rules::get().for_socket(domain, type, protocol);
    reason = decision.reason;
    return decision.verdict == Verdict::upgrade;
}

bool is_bound(const sockaddr_storage& address) {
    if (address.ss_family == AF_INET) {
        sockaddr_in four{};
        memcpy(&four, &address, sizeof(four));
        return four.sin_port != 0 || four.sin_addr.s_addr != htonl(INADDR_ANY);
    }
    sockaddr_in6 six{};
    memcpy(&six, &address, sizeof(six));
    return six.sin6_port != 0 || !IN6_IS_ADDR_UNSPECIFIED(&six.sin6_addr);
}

} // namespace preload
