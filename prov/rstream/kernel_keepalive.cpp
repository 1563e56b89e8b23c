// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/kernel_keepalive.hpp"

#include <algorithm>
#include <cerrno>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "prov/rstream/kernel_sockets.hpp"

namespace rstream {

namespace {

int set(int fd, int level, int name, size_t value) {
    const int number = static_cast<int>(value);
    return setsockopt(fd, level, name, &number, sizeof(number)) == 0 ? 0 : -errno;
}

size_t seconds(size_t milliseconds) { return std::max<size_t>(1, (milliseconds + 999) / 1000); }

} // namespace

int keep_kernel_socket_alive(const sockaddr& local, const sockaddr& peer, const KeepaliveSettings& settings) {
    const int fd = find_kernel_socket(local, peer);
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
