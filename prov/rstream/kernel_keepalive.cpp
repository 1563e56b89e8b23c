// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/kernel_keepalive.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include <dirent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace rstream {

namespace {

bool same_address(const sockaddr& a, const sockaddr& b) {
    if (a.sa_family != b.sa_family) {
        return false;
    }
    if (a.sa_family == AF_INET) {
        const auto& x = reinterpret_cast<const sockaddr_in&>(a);
        const auto& y = reinterpret_cast<const sockaddr_in&>(b);
        return x.sin_port == y.sin_port && x.sin_addr.s_addr == y.sin_addr.s_addr;
    }
    const auto& x = reinterpret_cast<const sockaddr_in6&>(a);
    const auto& y = reinterpret_cast<const sockaddr_in6&>(b);
    return a.sa_family == AF_INET6 && x.sin6_port == y.sin6_port &&
           memcmp(&x.sin6_addr, &y.sin6_addr, sizeof(x.sin6_addr)) == 0;
}

using NameCall = int (*)(int, sockaddr*, socklen_t*);

bool has_name(int fd, NameCall call, const sockaddr& wanted) {
    sockaddr_storage name{};
    socklen_t length = sizeof(name);
    return call(fd, reinterpret_cast<sockaddr*>(&name), &length) == 0 &&
           same_address(reinterpret_cast<const sockaddr&>(name), wanted);
}

int find_socket(const sockaddr& local, const sockaddr& peer) {
    struct Closer {
        void operator()(DIR* d) const { closedir(d); }
    };
    const std::unique_ptr<DIR, Closer> fds(opendir("/proc/self/fd"));
    if (!fds) {
        return -errno;
    }
    while (const dirent* entry = readdir(fds.get())) {
        const char* end = entry->d_name + strlen(entry->d_name);
        int fd = -1;
        if (std::from_chars(entry->d_name, end, fd).ptr == end && has_name(fd, getpeername, peer) &&
            has_name(fd, getsockname, local)) {
            return fd;
        }
    }
    return -ENOENT;
}

int set(int fd, int level, int name, size_t value) {
    const int number = static_cast<int>(value);
    return setsockopt(fd, level, name, &number, sizeof(number)) == 0 ? 0 : -errno;
}

size_t seconds(size_t milliseconds) { return std::max<size_t>(1, (milliseconds + 999) / 1000); }

} // namespace

int keep_kernel_socket_alive(const sockaddr& local, const sockaddr& peer, const KeepaliveSettings& settings) {
    const int fd = find_socket(local, peer);
    if (fd < 0) {
        return fd;
    }
    if (!settings.on()) {
        const int ret = set(fd, SOL_SOCKET, SO_KEEPALIVE, 0);
        return ret != 0 ? ret : set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 0);
    }
    const size_t idle = seconds(settings.idle);
    const size_t interval = seconds(settings.interval);
    int ret = set(fd, IPPROTO_TCP, TCP_KEEPIDLE, idle);
    ret = ret != 0 ? ret : set(fd, IPPROTO_TCP, TCP_KEEPINTVL, interval);
    ret = ret != 0 ? ret : set(fd, IPPROTO_TCP, TCP_KEEPCNT, settings.count);
    // Without it, data that nobody acknowledges is repeated for a quarter of an hour, and nobody is asked meanwhile.
    ret = ret != 0 ? ret : set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 1000 * (idle + interval * settings.count));
    return ret != 0 ? ret : set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
}

} // namespace rstream
