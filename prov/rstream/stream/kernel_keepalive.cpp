// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/stream/kernel_keepalive.hpp"

#include <algorithm>
#include <cerrno>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "prov/rstream/stream/user_timeout.hpp"

namespace rstream {

namespace {

int set(int fd, int level, int name, size_t value) {
    const int number = static_cast<int>(value);
    return setsockopt(fd, level, name, &number, sizeof(number)) == 0 ? 0 : -errno;
}

constexpr size_t rounding = 1000;      // milliseconds by which the kernel may be early
constexpr size_t many_repetitions = 8; // without an answer the peer is lost; the kernel itself does 15

// The time in milliseconds after which the kernel gives up an idle peer that does not answer; 0: never.
size_t keepalive_time(int fd) {
    const auto get = [fd](int level, int name) {
        int value = 0;
        socklen_t length = sizeof(value);
        return getsockopt(fd, level, name, &value, &length) == 0 ? static_cast<size_t>(value) : 0;
    };
    return get(SOL_SOCKET, SO_KEEPALIVE) == 0
               ? 0
               : 1000 *
                     (get(IPPROTO_TCP, TCP_KEEPIDLE) + get(IPPROTO_TCP, TCP_KEEPINTVL) * get(IPPROTO_TCP, TCP_KEEPCNT));
}

size_t seconds(size_t milliseconds) { return std::max<size_t>(1, (milliseconds + 999) / 1000); }

} // namespace

size_t kernel_user_timeout(const KeepaliveSettings& settings) {
    if (settings.timeout != 0 || !settings.on()) {
        return settings.timeout;
    }
    const size_t sum = 1000 * (seconds(settings.idle) + seconds(settings.interval) * settings.count);
    return sum < default_user_timeout ? sum : 0; // keepalive extends no timeout
}

int keep_kernel_socket_alive(int fd, const KeepaliveSettings& was, const KeepaliveSettings& settings) {
    // Without it, the kernel retransmits unacknowledged data for a quarter of an hour, and sends no probes meanwhile.
    if (const size_t timeout = kernel_user_timeout(settings); timeout != kernel_user_timeout(was)) {
        if (const int ret = set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, timeout); ret != 0) {
            return ret;
        }
    }
    if (!settings.on()) {
        return was.on() ? set(fd, SOL_SOCKET, SO_KEEPALIVE, 0) : 0;
    }
    const auto change = [&](int level, int name, size_t from, size_t to) {
        return was.on() && from == to ? 0 : set(fd, level, name, to);
    };
    int ret = change(IPPROTO_TCP, TCP_KEEPIDLE, seconds(was.idle), seconds(settings.idle));
    ret = ret != 0 ? ret : change(IPPROTO_TCP, TCP_KEEPINTVL, seconds(was.interval), seconds(settings.interval));
    ret = ret != 0 ? ret : change(IPPROTO_TCP, TCP_KEEPCNT, was.count, settings.count);
    return ret != 0 ? ret : change(SOL_SOCKET, SO_KEEPALIVE, 1, 1);
}

int KernelKeepalive::apply(const KeepaliveSettings& was, const KeepaliveSettings& settings) {
    user_timeout_.store(kernel_user_timeout(settings));
    const int fd = fd_.load();
    return fd < 0 ? fd : keep_kernel_socket_alive(fd, was, settings);
}

bool KernelKeepalive::timed_out() const {
    const int fd = fd_.load();
    const size_t user_timeout = user_timeout_.load();
    tcp_info info{};
    socklen_t length = sizeof(info);
    if (fd < 0 || getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0 || info.tcpi_state != TCP_CLOSE) {
        return false;
    }
    if (user_timeout == 0 && info.tcpi_retransmits >= many_repetitions) {
        return true;
    }
    const bool unanswered = info.tcpi_retransmits != 0 || info.tcpi_probes != 0;
    const size_t limit = user_timeout == 0 && info.tcpi_probes != 0 ? keepalive_time(fd) : user_timeout;
    const size_t silence = std::min(info.tcpi_last_ack_recv, info.tcpi_last_data_recv);
    return limit != 0 && unanswered && silence + rounding >= limit;
}

} // namespace rstream
