// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/connection/positions.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>

#include "preload/base/system.hpp"

namespace preload {

namespace {

constexpr uint8_t tcp_established = 1; // of the kernel's states

bool tcp_info_of(int fd, tcp_info& info) {
    socklen_t length = sizeof(info);
    // Linux 4.1 and later report the bytes.
    return sys::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 &&
           length >= offsetof(tcp_info, tcpi_bytes_received) + sizeof(info.tcpi_bytes_received);
}

} // namespace

uint64_t cookie_of(int fd) {
    uint64_t cookie = 0;
    socklen_t length = sizeof(cookie);
    return sys::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &length) == 0 ? cookie : 0;
}

bool read_arrived(int fd, uint64_t& out) {
    tcp_info info{};
    if (!tcp_info_of(fd, info)) {
        return false;
    }
    // The kernel counts the peer's FIN as a byte.
    constexpr std::array<uint8_t, 5> with_end{6, 7, 8, 9, 11}; // time-wait, close, close-wait, last-ack, closing
    const bool ended = std::find(with_end.begin(), with_end.end(), info.tcpi_state) != with_end.end();
    out = info.tcpi_bytes_received - (ended && info.tcpi_bytes_received != 0 ? 1 : 0);
    return true;
}

bool read_positions(int fd, Positions& out) {
    constexpr int attempts = 20;
    tcp_info before{};
    if (!tcp_info_of(fd, before)) {
        return false;
    }
    for (int i = 0; i < attempts; ++i) {
        int unsent = 0;
        int unread = 0;
        tcp_info after{};
        if (sys::ioctl(fd, SIOCOUTQ, &unsent) < 0 || sys::ioctl(fd, SIOCINQ, &unread) < 0 || !tcp_info_of(fd, after)) {
            return false;
        }
        // Between two equal samples nothing was acknowledged and nothing arrived.
        if (before.tcpi_bytes_acked == after.tcpi_bytes_acked &&
            before.tcpi_bytes_received == after.tcpi_bytes_received) {
            out.received = after.tcpi_bytes_received - static_cast<uint64_t>(unread);
            out.sent = after.tcpi_bytes_acked + static_cast<uint64_t>(unsent);
            out.unacknowledged = static_cast<uint64_t>(unsent);
            out.established = after.tcpi_state == tcp_established;
            return true;
        }
        before = after;
    }
    return false;
}

} // namespace preload
