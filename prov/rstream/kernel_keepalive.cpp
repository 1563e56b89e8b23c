// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/kernel_keepalive.hpp"

#include <algorithm>
#include <cerrno>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace rstream {

namespace {

int set(int fd, int level, int name, size_t value) {
    const int number = static_cast<int>(value);
    return setsockopt(fd, level, name, &number, sizeof(number)) == 0 ? 0 : -errno;
}

size_t seconds(size_t milliseconds) { return std::max<size_t>(1, (milliseconds + 999) / 1000); }

} // namespace

int keep_kernel_socket_alive(int fd, const KeepaliveSettings& was, const KeepaliveSettings& settings) {
    if (!settings.on()) {
        const int ret = set(fd, SOL_SOCKET, SO_KEEPALIVE, 0);
        return ret != 0 ? ret : set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 0);
    }
    const auto timeout = [](const KeepaliveSettings& of) {
        return 1000 * (seconds(of.idle) + seconds(of.interval) * of.count);
    };
    const auto change = [&](int level, int name, size_t from, size_t to) {
        return was.on() && from == to ? 0 : set(fd, level, name, to);
    };
    int ret = change(IPPROTO_TCP, TCP_KEEPIDLE, seconds(was.idle), seconds(settings.idle));
    ret = ret != 0 ? ret : change(IPPROTO_TCP, TCP_KEEPINTVL, seconds(was.interval), seconds(settings.interval));
    ret = ret != 0 ? ret : change(IPPROTO_TCP, TCP_KEEPCNT, was.count, settings.count);
    // Without it, data that nobody acknowledges is repeated for a quarter of an hour, and nobody is asked meanwhile.
    ret = ret != 0 ? ret : change(IPPROTO_TCP, TCP_USER_TIMEOUT, timeout(was), timeout(settings));
    return ret != 0 ? ret : change(SOL_SOCKET, SO_KEEPALIVE, 1, 1);
}

} // namespace rstream
