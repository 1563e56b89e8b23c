// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The socket options, one row each: where the value is stored, what setting it changes, and whether an accepted socket
// inherits it from its listener. An option without effect on a stream is a row and no more.
//
// Options that would have to change the data sent or received (filters, MD5 signatures, time stamps, urgent data) are
// not here, or have Place::nowhere: they fail as options that do not exist.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <rdma/rsocket.h>
#include <sys/socket.h>

namespace rsockets {

struct Option {
    enum class Place : uint8_t {
        kernel,  // KernelOptions: the kernel validates the value
        size,    // a size of the next connection, see `size`
        bytes,   // stored, without effect
        state,   // state of the socket or its connection; cannot be set
        nowhere, // reported as an unknown option
    };
    enum class Effect : uint8_t {
        none,
        cached,    // CachedOptions is refreshed
        keepalive, // passed to the provider
        family,    // changes the addresses of the socket: only before it is bound
    };
    enum class Size : uint8_t { none, send_buffer, recv_buffer, send_queue, recv_queue, inline_size, maps };

    int level;
    int name;
    const char* text; // the name in C
    Place place = Place::kernel;
    Effect effect = Effect::none;
    bool inherited = true;  // by an accepted socket
    bool of_state = false;  // getsockopt(2) returns state, not the value that was set
    Size size = Size::none; // for Place::size; values are clamped to min and max
    int min = 0;
    int max = 0;
};

// NOLINTNEXTLINE(bugprone-macro-parentheses): they are numbers
#define RSOCKET_OPTION(of, which) .level = of, .name = which, .text = #which

inline constexpr Option option_table[] = {
    {RSOCKET_OPTION(SOL_SOCKET, SO_REUSEADDR)},
    {RSOCKET_OPTION(SOL_SOCKET, SO_REUSEPORT)},
    {RSOCKET_OPTION(SOL_SOCKET, SO_KEEPALIVE), .effect = Option::Effect::keepalive},
    {RSOCKET_OPTION(SOL_SOCKET, SO_LINGER), .effect = Option::Effect::cached},
    {RSOCKET_OPTION(SOL_SOCKET, SO_OOBINLINE)},
    {RSOCKET_OPTION(SOL_SOCKET, SO_RCVTIMEO), .effect = Option::Effect::cached},
    {RSOCKET_OPTION(SOL_SOCKET, SO_SNDTIMEO), .effect = Option::Effect::cached},
    {RSOCKET_OPTION(SOL_SOCKET, SO_RCVLOWAT), .effect = Option::Effect::cached, .of_state = true},
    {RSOCKET_OPTION(SOL_SOCKET, SO_SNDLOWAT)},
    {RSOCKET_OPTION(SOL_SOCKET, SO_PRIORITY)},
    {RSOCKET_OPTION(SOL_SOCKET, SO_DONTROUTE)},
    {RSOCKET_OPTION(SOL_SOCKET, SO_MARK)},
    {RSOCKET_OPTION(SOL_SOCKET, SO_BINDTODEVICE), .place = Option::Place::nowhere},
    {RSOCKET_OPTION(SOL_SOCKET, SO_ATTACH_FILTER), .place = Option::Place::nowhere},
    {RSOCKET_OPTION(SOL_SOCKET, SO_ZEROCOPY), .place = Option::Place::nowhere},
    {RSOCKET_OPTION(SOL_SOCKET, SO_TIMESTAMP), .place = Option::Place::nowhere},
    {RSOCKET_OPTION(SOL_SOCKET, SO_TIMESTAMPING), .place = Option::Place::nowhere},
    {RSOCKET_OPTION(SOL_SOCKET, SO_SNDBUF), .place = Option::Place::size, .size = Option::Size::send_buffer,
     .min = 4096, .max = 1 << 30},
    {RSOCKET_OPTION(SOL_SOCKET, SO_RCVBUF), .place = Option::Place::size, .size = Option::Size::recv_buffer,
     .min = 4096, .max = 1 << 30},
    {RSOCKET_OPTION(SOL_SOCKET, SO_TYPE)},
    {RSOCKET_OPTION(SOL_SOCKET, SO_DOMAIN)},
    {RSOCKET_OPTION(SOL_SOCKET, SO_PROTOCOL)},
    {RSOCKET_OPTION(SOL_SOCKET, SO_BROADCAST)},
    {RSOCKET_OPTION(SOL_SOCKET, SO_NO_CHECK)},
    {RSOCKET_OPTION(SOL_SOCKET, SO_BUSY_POLL)},
    {RSOCKET_OPTION(SOL_SOCKET, SO_DEBUG)},
    {RSOCKET_OPTION(SOL_SOCKET, SO_PEERNAME)},
    {RSOCKET_OPTION(SOL_SOCKET, SO_COOKIE)},
    {RSOCKET_OPTION(SOL_SOCKET, SO_INCOMING_CPU)},
    {RSOCKET_OPTION(SOL_SOCKET, SO_INCOMING_NAPI_ID)},
    {RSOCKET_OPTION(SOL_SOCKET, SO_MEMINFO)},
    {RSOCKET_OPTION(SOL_SOCKET, SO_PASSCRED)},
    {RSOCKET_OPTION(SOL_SOCKET, SO_PEERCRED)},
    {RSOCKET_OPTION(SOL_SOCKET, SO_PEERSEC)},
    {RSOCKET_OPTION(SOL_SOCKET, SO_RXQ_OVFL)},
    {RSOCKET_OPTION(SOL_SOCKET, SO_WIFI_STATUS)},
    {RSOCKET_OPTION(SOL_SOCKET, SO_MAX_PACING_RATE)},
    {RSOCKET_OPTION(SOL_SOCKET, SO_ACCEPTCONN), .place = Option::Place::state, .of_state = true},
    {RSOCKET_OPTION(SOL_SOCKET, SO_ERROR), .place = Option::Place::state, .of_state = true},

    {RSOCKET_OPTION(IPPROTO_TCP, TCP_NODELAY)},
    {RSOCKET_OPTION(IPPROTO_TCP, TCP_CORK), .effect = Option::Effect::cached},
    {RSOCKET_OPTION(IPPROTO_TCP, TCP_MAXSEG)},
    {RSOCKET_OPTION(IPPROTO_TCP, TCP_KEEPIDLE), .effect = Option::Effect::keepalive},
    {RSOCKET_OPTION(IPPROTO_TCP, TCP_KEEPINTVL), .effect = Option::Effect::keepalive},
    {RSOCKET_OPTION(IPPROTO_TCP, TCP_KEEPCNT), .effect = Option::Effect::keepalive},
    {RSOCKET_OPTION(IPPROTO_TCP, TCP_SYNCNT)},
    {RSOCKET_OPTION(IPPROTO_TCP, TCP_LINGER2)},
    {RSOCKET_OPTION(IPPROTO_TCP, TCP_DEFER_ACCEPT)},
    {RSOCKET_OPTION(IPPROTO_TCP, TCP_CONGESTION)},
    {RSOCKET_OPTION(IPPROTO_TCP, TCP_WINDOW_CLAMP)},
    {RSOCKET_OPTION(IPPROTO_TCP, TCP_USER_TIMEOUT), .effect = Option::Effect::keepalive},
    {RSOCKET_OPTION(IPPROTO_TCP, TCP_NOTSENT_LOWAT)},
    {RSOCKET_OPTION(IPPROTO_TCP, TCP_FASTOPEN_CONNECT), .place = Option::Place::nowhere},
    {RSOCKET_OPTION(IPPROTO_TCP, TCP_ULP), .place = Option::Place::nowhere},
    {RSOCKET_OPTION(IPPROTO_TCP, TCP_QUICKACK)},
    {RSOCKET_OPTION(IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS)},
    {RSOCKET_OPTION(IPPROTO_TCP, TCP_THIN_DUPACK)},
    {RSOCKET_OPTION(IPPROTO_TCP, TCP_FASTOPEN)},
    {RSOCKET_OPTION(IPPROTO_TCP, TCP_INFO), .place = Option::Place::state, .of_state = true},

    {RSOCKET_OPTION(IPPROTO_IP, IP_TOS)},
    {RSOCKET_OPTION(IPPROTO_IP, IP_TTL)},
    {RSOCKET_OPTION(IPPROTO_IP, IP_FREEBIND)},
    {RSOCKET_OPTION(IPPROTO_IP, IP_TRANSPARENT), .place = Option::Place::nowhere},
    {RSOCKET_OPTION(IPPROTO_IP, IP_MTU_DISCOVER)},
    {RSOCKET_OPTION(IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT)},
    {RSOCKET_OPTION(IPPROTO_IP, IP_RECVTOS)},
    {RSOCKET_OPTION(IPPROTO_IP, IP_RECVERR)},

    {RSOCKET_OPTION(IPPROTO_IPV6, IPV6_V6ONLY), .effect = Option::Effect::family},
    {RSOCKET_OPTION(IPPROTO_IPV6, IPV6_TCLASS)},
    {RSOCKET_OPTION(IPPROTO_IPV6, IPV6_UNICAST_HOPS)},
    {RSOCKET_OPTION(IPPROTO_IPV6, IPV6_MTU_DISCOVER)},
    {RSOCKET_OPTION(IPPROTO_IPV6, IPV6_RECVERR)},
    {RSOCKET_OPTION(IPPROTO_IPV6, IPV6_RECVTCLASS)},

    {RSOCKET_OPTION(SOL_RDMA, RDMA_SQSIZE), .place = Option::Place::size, .size = Option::Size::send_queue, .min = 1,
     .max = 65535},
    {RSOCKET_OPTION(SOL_RDMA, RDMA_RQSIZE), .place = Option::Place::size, .size = Option::Size::recv_queue, .min = 1,
     .max = 65535},
    {RSOCKET_OPTION(SOL_RDMA, RDMA_INLINE), .place = Option::Place::size, .size = Option::Size::inline_size,
     .max = 65535},
    {RSOCKET_OPTION(SOL_RDMA, RDMA_IOMAPSIZE), .place = Option::Place::size, .size = Option::Size::maps,
     .max = 4096}, // the limit of the provider
    {RSOCKET_OPTION(SOL_RDMA, RDMA_ROUTE), .place = Option::Place::bytes, .inherited = false},
};

#undef RSOCKET_OPTION

// Null if it is not in the table.
constexpr const Option* find_option(int level, int name) {
    for (const Option& option : option_table) {
        if (option.level == level && option.name == name) {
            return &option;
        }
    }
    return nullptr;
}

} // namespace rsockets
