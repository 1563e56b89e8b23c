// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// setsockopt and getsockopt. Buffer sizes are left out: see rsocket-ofi(7).
#include "rsockets/test/conformance/conformance.hpp"

#include <climits>
#include <cstring>

using namespace conformance;

namespace {

void note_value(Case& c, int fd, int level, int name) {
    int value = -77;
    socklen_t length = sizeof(value);
    SAY(c.s.getsockopt(fd, level, name, &value, &length));
    c.note(std::to_string(value) + " of " + std::to_string(length) + " bytes");
}

// Default, several values, what is read back, and bad lengths.
void try_option(Case& c, int level, int name, std::initializer_list<int> values, int family = AF_INET) {
    const int fd = c.make_socket(family);
    note_value(c, fd, level, name);
    for (const int value : values) {
        c.note("to " + std::to_string(value));
        SAY(c.s.setsockopt(fd, level, name, &value, sizeof(value)));
        note_value(c, fd, level, name);
    }
    const int one = 1;
    SAY(c.s.setsockopt(fd, level, name, &one, 1));
    SAY(c.s.setsockopt(fd, level, name, &one, 0));
    SAY(c.s.setsockopt(fd, level, name, nullptr, sizeof(one)));
    note_value(c, fd, level, name);
    char narrow[2] = {7, 7};
    socklen_t length = 1;
    SAY(c.s.getsockopt(fd, level, name, narrow, &length));
    c.note(std::to_string(length) + " " + std::to_string(narrow[1]));
}

} // namespace

CASE(so_keepalive) { try_option(c, SOL_SOCKET, SO_KEEPALIVE, {1, 5, 0}); }
CASE(so_reuseaddr) { try_option(c, SOL_SOCKET, SO_REUSEADDR, {1, 5, 0}); }
CASE(so_reuseport) { try_option(c, SOL_SOCKET, SO_REUSEPORT, {1, 0}); }
CASE(so_oobinline) { try_option(c, SOL_SOCKET, SO_OOBINLINE, {1, 0}); }
CASE(so_rcvlowat) { try_option(c, SOL_SOCKET, SO_RCVLOWAT, {10, 0, 1, -5}); }
CASE(so_sndlowat) { try_option(c, SOL_SOCKET, SO_SNDLOWAT, {10}); }
CASE(so_broadcast) { try_option(c, SOL_SOCKET, SO_BROADCAST, {1, 0}); }
CASE(so_dontroute) { try_option(c, SOL_SOCKET, SO_DONTROUTE, {1, 0}); }
CASE(so_priority) { try_option(c, SOL_SOCKET, SO_PRIORITY, {3, 0}); }
CASE(so_type) { try_option(c, SOL_SOCKET, SO_TYPE, {1}); }
CASE(so_domain) { try_option(c, SOL_SOCKET, SO_DOMAIN, {1}); }
CASE(so_domain_of_ipv6) { try_option(c, SOL_SOCKET, SO_DOMAIN, {}, AF_INET6); }
CASE(so_protocol) { try_option(c, SOL_SOCKET, SO_PROTOCOL, {1}); }
CASE(so_error) { try_option(c, SOL_SOCKET, SO_ERROR, {1}); }

CASE(a_query_that_is_refused_leaves_the_error) {
    const sockaddr_in to = loopback(closed_port());
    const int fd = c.make_socket(AF_INET, SOCK_NONBLOCK);
    SAY(c.s.connect(fd, generic(to), sizeof(to)));
    c.await(fd, POLLERR);
    int error = -1;
    auto length = static_cast<socklen_t>(-1);
    SAY(c.s.getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length));
    note_value(c, fd, SOL_SOCKET, SO_ERROR);
}
CASE(so_acceptconn) { try_option(c, SOL_SOCKET, SO_ACCEPTCONN, {1}); }
CASE(tcp_nodelay) { try_option(c, IPPROTO_TCP, TCP_NODELAY, {1, 7, 0}); }
CASE(tcp_cork) { try_option(c, IPPROTO_TCP, TCP_CORK, {1, 0}); }
CASE(tcp_maxseg) { try_option(c, IPPROTO_TCP, TCP_MAXSEG, {1000, 10, 100000}); }
CASE(tcp_keepidle) { try_option(c, IPPROTO_TCP, TCP_KEEPIDLE, {10, 0, 100000}); }
CASE(tcp_keepintvl) { try_option(c, IPPROTO_TCP, TCP_KEEPINTVL, {10, 0, 100000}); }
CASE(tcp_keepcnt) { try_option(c, IPPROTO_TCP, TCP_KEEPCNT, {10, 0, 1000}); }
CASE(tcp_syncnt) { try_option(c, IPPROTO_TCP, TCP_SYNCNT, {3, 0, 1000}); }
CASE(tcp_user_timeout) { try_option(c, IPPROTO_TCP, TCP_USER_TIMEOUT, {3000, 0, -1}); }
CASE(tcp_quickack) { try_option(c, IPPROTO_TCP, TCP_QUICKACK, {}); }
CASE(tcp_defer_accept) { try_option(c, IPPROTO_TCP, TCP_DEFER_ACCEPT, {0}); }
CASE(tcp_linger2) { try_option(c, IPPROTO_TCP, TCP_LINGER2, {10, -1}); }
CASE(ip_tos) { try_option(c, IPPROTO_IP, IP_TOS, {0x10, 0}); }
CASE(ipv6_v6only) { try_option(c, IPPROTO_IPV6, IPV6_V6ONLY, {1, 0}, AF_INET6); }
CASE(ipv6_v6only_on_ipv4) { try_option(c, IPPROTO_IPV6, IPV6_V6ONLY, {1}); }
CASE(an_unknown_socket_option) { try_option(c, SOL_SOCKET, 9999, {1}); }
CASE(an_unknown_tcp_option) { try_option(c, IPPROTO_TCP, 9999, {1}); }
CASE(an_unknown_level) { try_option(c, 9999, 1, {1}); }

CASE(v6only_is_fixed_once_bound) {
    const int fd = c.make_listener(1, AF_INET6);
    const int on = 1;
    SAY(c.s.setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on)));
}

CASE(so_linger_is_a_structure) {
    const int fd = c.make_socket();
    const linger some{1, 7};
    SAY(c.s.setsockopt(fd, SOL_SOCKET, SO_LINGER, &some, sizeof(some)));
    linger back{};
    socklen_t length = sizeof(back);
    SAY(c.s.getsockopt(fd, SOL_SOCKET, SO_LINGER, &back, &length));
    c.note(std::to_string(back.l_onoff) + " " + std::to_string(back.l_linger) + " " + std::to_string(length));
    SAY(c.s.setsockopt(fd, SOL_SOCKET, SO_LINGER, &some, sizeof(int)));
    const linger off{0, 3};
    SAY(c.s.setsockopt(fd, SOL_SOCKET, SO_LINGER, &off, sizeof(off)));
    SAY(c.s.getsockopt(fd, SOL_SOCKET, SO_LINGER, &back, &length));
    c.note(std::to_string(back.l_onoff));
}

CASE(time_limits_are_structures) {
    const int fd = c.make_socket();
    for (const int name : {SO_RCVTIMEO, SO_SNDTIMEO}) {
        for (const timeval time : {timeval{2, 500000}, timeval{0, 0}, timeval{0, 1000001}, timeval{-1, 0}}) {
            SAY(c.s.setsockopt(fd, SOL_SOCKET, name, &time, sizeof(time)));
            timeval back{};
            socklen_t length = sizeof(back);
            SAY(c.s.getsockopt(fd, SOL_SOCKET, name, &back, &length));
            c.note(std::to_string(back.tv_sec) + " " + std::to_string(back.tv_usec) + " " + std::to_string(length));
        }
        const timeval time{1, 0};
        SAY(c.s.setsockopt(fd, SOL_SOCKET, name, &time, 4));
    }
}

CASE(large_time_limits_are_kept) {
    const Pair pair = c.make_pair();
    for (const timeval time : {timeval{1000000, 0}, timeval{INT_MAX, 0}, timeval{long{INT_MAX} + 1, 0},
                               timeval{1L << 40, 0}, timeval{LONG_MAX, 0}, timeval{LONG_MAX, 999999}}) {
        for (const int name : {SO_RCVTIMEO, SO_SNDTIMEO}) {
            SAY(c.s.setsockopt(pair.server, SOL_SOCKET, name, &time, sizeof(time)));
            timeval back{};
            socklen_t length = sizeof(back);
            SAY(c.s.getsockopt(pair.server, SOL_SOCKET, name, &back, &length));
            c.note(std::to_string(back.tv_sec) + " " + std::to_string(back.tv_usec));
        }
        const int id = thread_id();
        c.run([&] {
            await_sleep(id);
            c.send_all(pair.client, "x");
        });
        SAY(c.s.recv(pair.server, c.buffer, 1, 0));
        c.join();
    }
}

CASE(tcp_quickack_is_set_and_read) {
    for (const int fd : {c.make_socket(), c.make_pair().client}) {
        for (const int value : {0, 1, 0, 2, 0, -1}) {
            SAY(c.s.setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &value, sizeof(value)));
            note_value(c, fd, IPPROTO_TCP, TCP_QUICKACK);
        }
    }
}

// Where the size of the buffer is asked for: half of it is the most there is to wait for.
CASE(low_water_beyond_the_buffer) {
    const int listener = c.make_listener();
    c.set(listener, SOL_SOCKET, SO_RCVBUF, 65536);
    const int client = c.make_connected_to(listener);
    const int fd = c.accept_from(listener);
    const int wanted = 1 << 30;
    SAY(c.s.setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof(wanted)));
    int lowest = 0;
    int size = 0;
    socklen_t length = sizeof(lowest);
    SAY(c.s.getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &lowest, &length));
    SAY(c.s.getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, &length));
    c.note(lowest == size / 2 ? "half" : lowest < size ? "less than all" : "all or more");
    c.send_all(client, "x");
    pollfd one{fd, POLLIN, 0};
    SAY(c.s.poll(&one, 1, 50));
    c.fill(client);
    c.note_events("full", static_cast<unsigned short>(c.await(fd, POLLIN)));
}

CASE(so_acceptconn_of_a_listener) {
    const int fd = c.make_listener();
    note_value(c, fd, SOL_SOCKET, SO_ACCEPTCONN);
    c.s.shutdown(fd, SHUT_RD);
    note_value(c, fd, SOL_SOCKET, SO_ACCEPTCONN);
}

CASE(options_of_a_connection_are_those_of_its_socket) {
    const Pair pair = c.make_pair();
    c.set(pair.client, SOL_SOCKET, SO_KEEPALIVE, 1);
    c.set(pair.client, IPPROTO_TCP, TCP_KEEPIDLE, 33);
    note_value(c, pair.client, SOL_SOCKET, SO_KEEPALIVE);
    note_value(c, pair.client, IPPROTO_TCP, TCP_KEEPIDLE);
    note_value(c, pair.server, SOL_SOCKET, SO_KEEPALIVE);
    note_value(c, pair.client, SOL_SOCKET, SO_TYPE);
    note_value(c, pair.client, SOL_SOCKET, SO_ERROR);
    note_value(c, pair.client, SOL_SOCKET, SO_ACCEPTCONN);
}

CASE(options_of_a_listener_pass_to_what_it_accepts) {
    const int listener = c.make_listener();
    c.set(listener, SOL_SOCKET, SO_KEEPALIVE, 1);
    c.set(listener, IPPROTO_TCP, TCP_KEEPIDLE, 44);
    c.set(listener, IPPROTO_TCP, TCP_KEEPINTVL, 5);
    c.set(listener, IPPROTO_TCP, TCP_KEEPCNT, 6);
    c.set(listener, IPPROTO_TCP, TCP_USER_TIMEOUT, 70000);
    c.set(listener, IPPROTO_TCP, TCP_NODELAY, 1);
    const linger some{1, 9};
    SAY(c.s.setsockopt(listener, SOL_SOCKET, SO_LINGER, &some, sizeof(some)));
    c.make_connected_to(listener);
    const int fd = c.accept_from(listener);
    note_value(c, fd, SOL_SOCKET, SO_KEEPALIVE);
    for (const int name : {TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT, TCP_USER_TIMEOUT, TCP_NODELAY}) {
        note_value(c, fd, IPPROTO_TCP, name);
    }
    linger back{};
    socklen_t length = sizeof(back);
    SAY(c.s.getsockopt(fd, SOL_SOCKET, SO_LINGER, &back, &length));
    c.note(std::to_string(back.l_onoff) + " " + std::to_string(back.l_linger));
}

CASE(tcp_info_knows_the_state) {
    const auto note_state = [&c](const char* what, int fd) {
        tcp_info info{};
        socklen_t length = sizeof(info);
        SAY(c.s.getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length));
        c.note(std::string(what) + " " + std::to_string(info.tcpi_state));
    };
    note_state("fresh", c.make_socket());
    note_state("listening", c.make_listener());
    const Pair pair = c.make_pair();
    note_state("connected", pair.client);
    c.s.shutdown(pair.client, SHUT_WR);
    c.await(pair.server, POLLRDHUP);
    note_state("the other", pair.server);
    c.s.shutdown(pair.server, SHUT_WR);
    c.await(pair.client, POLLHUP);
}

CASE(getsockopt_without_a_length) {
    int value = 0;
    SAY(c.s.getsockopt(c.make_socket(), SOL_SOCKET, SO_TYPE, &value, nullptr));
    socklen_t negative = static_cast<socklen_t>(-1);
    SAY(c.s.getsockopt(c.make_socket(), SOL_SOCKET, SO_TYPE, &value, &negative));
}

CASE(buffer_sizes_are_no_smaller_than_asked_for) {
    const int fd = c.make_socket();
    for (const int name : {SO_SNDBUF, SO_RCVBUF}) {
        const int wanted = 65536;
        SAY(c.s.setsockopt(fd, SOL_SOCKET, name, &wanted, sizeof(wanted)));
        int value = 0;
        socklen_t length = sizeof(value);
        SAY(c.s.getsockopt(fd, SOL_SOCKET, name, &value, &length));
        c.note(value >= wanted ? "enough" : "too little");
        SAY(c.s.setsockopt(fd, SOL_SOCKET, name, &wanted, 2));
        const int zero = 0;
        SAY(c.s.setsockopt(fd, SOL_SOCKET, name, &zero, sizeof(zero)));
    }
}

CASE(a_socket_bound_to_an_ipv6_address_is_v6only) {
    const sockaddr_in6 own = loopback6(0);
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    sockaddr_in6 mapped = own;
    mapped.sin6_addr = in6addr_any;
    mapped.sin6_addr.s6_addr[10] = mapped.sin6_addr.s6_addr[11] = 0xff;
    for (const sockaddr_in6& address : {own, any, mapped}) {
        const int fd = c.make_socket(AF_INET6);
        SAY(c.s.bind(fd, generic(address), sizeof(address)));
        note_value(c, fd, IPPROTO_IPV6, IPV6_V6ONLY);
    }
}
