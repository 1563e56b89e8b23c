// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// connect and accept.
#include "rsockets/test/conformance/conformance.hpp"

#include <cstring>

#include <arpa/inet.h>

using namespace conformance;

namespace {

constexpr short all_events = POLLIN | POLLPRI | POLLOUT | POLLRDNORM | POLLWRNORM | POLLRDHUP;

void reset(Case& c, int fd) {
    const linger now{1, 0};
    c.s.setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    c.forget(fd);
    SAY(c.s.close(fd));
}

// For an event that has to come.
constexpr int in_time = 5000;

// Whether a connection can be made; waits for ever in no case.
void note_way(Case& c, int listener, const sockaddr* to, socklen_t length) {
    const int fd = c.make_socket(to->sa_family, SOCK_NONBLOCK);
    SAY(c.s.connect(fd, to, length));
    pollfd one{fd, POLLOUT, 0};
    SAY(c.s.poll(&one, 1, in_time));
    c.note_events("connected", static_cast<unsigned short>(one.revents));
    one = {listener, POLLIN, 0};
    if (SAY(c.s.poll(&one, 1, in_time)) == 1) {
        MAKE(c.s.accept(listener, nullptr, nullptr));
    }
}

// Where a socket is now that was at that port.
void note_name(Case& c, const char* what, int fd, uint16_t port) {
    const sockaddr_storage now = c.address_of(fd);
    c.note(std::string(what) + " " + text_of(now) + (port_of(now) == port ? ", that one" : ""));
}

} // namespace

CASE(connect_and_accept) {
    const int listener = c.make_listener();
    const sockaddr_storage to = c.address_of(listener);
    const int fd = c.make_socket();
    SAY(c.s.connect(fd, generic(to), length_of(to)));
    MAKE(c.s.accept(listener, nullptr, nullptr));
    SAY(c.s.connect(fd, generic(to), length_of(to)));
}

CASE(connect_to_a_closed_port) {
    const sockaddr_in to = loopback(closed_port());
    const int fd = c.make_socket();
    SAY(c.s.connect(fd, generic(to), sizeof(to)));
    c.note_error(fd);
}

CASE(connect_again_after_a_refusal) {
    const int listener = c.make_listener();
    const sockaddr_in closed = loopback(closed_port());
    const sockaddr_storage open = c.address_of(listener);
    const int fd = c.make_socket();
    SAY(c.s.connect(fd, generic(closed), sizeof(closed)));
    SAY(c.s.connect(fd, generic(closed), sizeof(closed)));
    SAY(c.s.connect(fd, generic(open), length_of(open)));
    MAKE(c.s.accept(listener, nullptr, nullptr));
}

CASE(a_refused_socket_polls_as_closed) {
    const sockaddr_in to = loopback(closed_port());
    const int fd = c.make_socket();
    SAY(c.s.connect(fd, generic(to), sizeof(to)));
    c.note_poll("refused", fd, all_events);
    SAY(c.s.send(fd, "x", 1, MSG_NOSIGNAL));
    SAY(c.s.recv(fd, c.buffer, 1, 0));
}

CASE(nonblocking_connect) {
    const int listener = c.make_listener();
    const sockaddr_storage to = c.address_of(listener);
    const int fd = c.make_socket(AF_INET, SOCK_NONBLOCK);
    SAY(c.s.connect(fd, generic(to), length_of(to)));
    c.note_events("connected", static_cast<unsigned short>(c.await(fd, POLLOUT)));
    c.note_error(fd);
    MAKE(c.s.accept(listener, nullptr, nullptr));
}

CASE(nonblocking_connect_to_a_closed_port) {
    const sockaddr_in to = loopback(closed_port());
    const int fd = c.make_socket(AF_INET, SOCK_NONBLOCK);
    SAY(c.s.connect(fd, generic(to), sizeof(to)));
    c.note_events("refused", static_cast<unsigned short>(c.await(fd, all_events)));
    c.note_error(fd);
    c.note_error(fd);
    c.note_poll("after SO_ERROR", fd, all_events);
}

CASE(the_second_connect_tells_how_the_first_went) {
    const int listener = c.make_listener();
    const sockaddr_storage to = c.address_of(listener);
    const int fd = c.make_socket(AF_INET, SOCK_NONBLOCK);
    SAY(c.s.connect(fd, generic(to), length_of(to)));
    c.await(fd, POLLOUT);
    SAY(c.s.connect(fd, generic(to), length_of(to)));
    SAY(c.s.connect(fd, generic(to), length_of(to)));
}

CASE(the_second_connect_tells_of_a_refusal) {
    const sockaddr_in to = loopback(closed_port());
    const int fd = c.make_socket(AF_INET, SOCK_NONBLOCK);
    SAY(c.s.connect(fd, generic(to), sizeof(to)));
    c.await(fd, POLLOUT);
    SAY(c.s.connect(fd, generic(to), sizeof(to)));
    SAY(c.s.connect(fd, generic(to), sizeof(to)));
}

CASE(the_second_connect_after_so_error) {
    const sockaddr_in to = loopback(closed_port());
    const int fd = c.make_socket(AF_INET, SOCK_NONBLOCK);
    SAY(c.s.connect(fd, generic(to), sizeof(to)));
    c.await(fd, POLLOUT);
    c.note_error(fd);
    SAY(c.s.connect(fd, generic(to), sizeof(to)));
    SAY(c.s.connect(fd, generic(to), sizeof(to)));
}

CASE(connect_with_bad_addresses) {
    const sockaddr_in four = loopback(1);
    const sockaddr_in6 six = loopback6(1);
    SAY(c.s.connect(c.make_socket(), generic(four), sizeof(four) - 1));
    SAY(c.s.connect(c.make_socket(), generic(four), 1));
    SAY(c.s.connect(c.make_socket(), nullptr, sizeof(four)));
    SAY(c.s.connect(c.make_socket(), generic(six), sizeof(six)));
    SAY(c.s.connect(c.make_socket(AF_INET6), generic(six), 20));
}

CASE(connect_to_a_group) {
    sockaddr_in group = loopback(9);
    inet_pton(AF_INET, "224.0.0.5", &group.sin_addr);
    SAY(c.s.connect(c.make_socket(), generic(group), sizeof(group)));
    inet_pton(AF_INET, "255.255.255.255", &group.sin_addr);
    SAY(c.s.connect(c.make_socket(), generic(group), sizeof(group)));
}

CASE(connect_to_the_wildcard_reaches_this_machine) {
    need_loopback();
    const int listener = c.make_listener();
    sockaddr_in to = loopback(port_of(c.address_of(listener)));
    to.sin_addr.s_addr = htonl(INADDR_ANY);
    const int fd = c.make_socket();
    SAY(c.s.connect(fd, generic(to), sizeof(to)));
    MAKE(c.s.accept(listener, nullptr, nullptr));
}

CASE(a_listener_on_the_wildcard_keeps_its_port) {
    for (const int family : {AF_INET, AF_INET6}) {
        const int listener = c.make_socket(family);
        sockaddr_storage any{};
        any.ss_family = static_cast<sa_family_t>(family);
        SAY(c.s.bind(listener, generic(any), length_of(any)));
        const sockaddr_storage bound = c.address_of(listener);
        SAY(c.s.listen(listener, 4));
        const sockaddr_storage listening = c.address_of(listener);
        c.note(text_of(listening));
        c.note(port_of(listening) == port_of(bound) ? "that port" : "another port");
        const sockaddr_in four = loopback(port_of(bound));
        const sockaddr_in6 six = loopback6(port_of(bound));
        const int fd = c.make_socket(family);
        SAY(c.s.connect(fd, family == AF_INET ? generic(four) : generic(six), length_of(any)));
        MAKE(c.s.accept(listener, nullptr, nullptr));
    }
}

CASE(connect_of_a_listener) {
    const int listener = c.make_listener();
    const sockaddr_storage to = c.address_of(c.make_listener());
    SAY(c.s.connect(listener, generic(to), length_of(to)));
}

CASE(connect_from_a_bound_port) {
    const int listener = c.make_listener();
    const sockaddr_storage to = c.address_of(listener);
    const int fd = c.make_socket();
    const sockaddr_in any = loopback(0);
    SAY(c.s.bind(fd, generic(any), sizeof(any)));
    const uint16_t port = port_of(c.address_of(fd));
    SAY(c.s.connect(fd, generic(to), length_of(to)));
    sockaddr_storage peer{};
    socklen_t length = sizeof(peer);
    MAKE(c.s.accept(listener, generic(peer), &length));
    c.note(port_of(peer) == port ? "from that port" : "from another port");
    c.note(port_of(c.address_of(fd)) == port ? "and it says so" : "and does not say so");
}

CASE(connect_from_a_port_of_any_address) {
    const int listener = c.make_listener();
    const sockaddr_storage to = c.address_of(listener);
    const int fd = c.make_socket();
    sockaddr_in any = loopback(0);
    any.sin_addr.s_addr = htonl(INADDR_ANY);
    SAY(c.s.bind(fd, generic(any), sizeof(any)));
    const uint16_t port = port_of(c.address_of(fd));
    SAY(c.s.connect(fd, generic(to), length_of(to)));
    c.note(text_of(c.address_of(fd)));
    c.note(port_of(c.address_of(fd)) == port ? "that port" : "another port");
}

CASE(both_ends_tell_their_names) {
    const Pair pair = c.make_pair();
    for (const int fd : {pair.client, pair.server}) {
        sockaddr_storage peer{};
        socklen_t length = sizeof(peer);
        SAY(c.s.getpeername(fd, generic(peer), &length));
        c.note(text_of(peer) + " " + std::to_string(length));
        c.note(text_of(c.address_of(fd)));
    }
    sockaddr_storage peer{};
    socklen_t length = sizeof(peer);
    c.s.getpeername(pair.client, generic(peer), &length);
    c.note(port_of(peer) == port_of(c.address_of(pair.server)) ? "they agree" : "they differ");
    length = 4;
    SAY(c.s.getpeername(pair.client, generic(peer), &length));
    c.note(std::to_string(length));
}

CASE(accept_gives_the_peers_address) {
    const int listener = c.make_listener();
    const int client = c.make_connected_to(listener);
    sockaddr_storage peer{};
    socklen_t length = sizeof(peer);
    MAKE(c.s.accept(listener, generic(peer), &length));
    c.note(text_of(peer) + " " + std::to_string(length));
    c.note(port_of(peer) == port_of(c.address_of(client)) ? "the client's" : "another's");
}

CASE(accept_cuts_the_address_to_the_room) {
    const int listener = c.make_listener();
    c.make_connected_to(listener);
    sockaddr_storage peer{};
    socklen_t length = 2;
    MAKE(c.s.accept(listener, generic(peer), &length));
    c.note(std::to_string(length) + " " + std::to_string(peer.ss_family));
}

CASE(accept_with_bad_room_for_the_address) {
    for (const bool negative : {true, false}) {
        const int listener = c.make_listener();
        const int client = c.make_connected_to(listener);
        c.await(listener, POLLIN);
        SAY(c.s.fcntl(listener, F_SETFL, O_NONBLOCK));
        sockaddr_storage peer{};
        socklen_t length = static_cast<socklen_t>(-1);
        MAKE(c.s.accept(listener, generic(peer), negative ? &length : nullptr));
        c.note_poll("the listener", listener, all_events);
        MAKE(c.s.accept(listener, nullptr, nullptr)); // whether it is still there
        pollfd one{client, POLLIN, 0};
        SAY(c.s.poll(&one, 1, in_time));
        SAY(c.s.recv(client, c.buffer, 1, MSG_DONTWAIT));
    }
}

CASE(accept_without_an_address_ignores_its_length) {
    const int listener = c.make_listener();
    c.make_connected_to(listener);
    socklen_t length = static_cast<socklen_t>(-1);
    MAKE(c.s.accept(listener, nullptr, &length));
    c.note(std::to_string(length));
}

CASE(a_connection_that_is_reset_is_accepted) {
    const int listener = c.make_listener();
    const int client = c.make_connected_to(listener);
    c.await(listener, POLLIN);
    reset(c, client);
    c.note_poll("the listener", listener, all_events);
    sockaddr_storage peer{};
    socklen_t length = sizeof(peer);
    const int fd = MAKE(c.s.accept(listener, generic(peer), &length));
    c.note(text_of(peer) + " " + std::to_string(length));
    c.note_events("reset", static_cast<unsigned short>(c.await(fd, POLLERR)));
    SAY(c.s.getpeername(fd, generic(peer), &length));
    SAY(c.s.recv(fd, c.buffer, 1, 0));
    SAY(c.s.recv(fd, c.buffer, 1, 0));
}

CASE(a_reset_after_the_end_is_a_broken_pipe) {
    const int listener = c.make_listener();
    const int client = c.make_connected_to(listener);
    c.send_all(client, "early");
    c.await(listener, POLLIN);
    SAY(c.s.shutdown(client, SHUT_WR));
    const int fd = c.accept_from(listener);
    c.await(fd, POLLRDHUP);
    reset(c, client);
    pollfd one{fd, 0, 0};
    SAY(c.s.poll(&one, 1, in_time));
    c.note_error(fd);
    c.note_bytes("got", SAY(c.s.recv(fd, c.buffer, 100, 0)));
    SAY(c.s.recv(fd, c.buffer, 100, 0));
}

CASE(accept_with_nobody_there) {
    const int listener = c.make_listener();
    SAY(c.s.fcntl(listener, F_SETFL, O_NONBLOCK));
    SAY(c.s.accept(listener, nullptr, nullptr));
}

CASE(accept_of_a_socket_that_does_not_listen) {
    const Pair pair = c.make_pair();
    SAY(c.s.accept(pair.client, nullptr, nullptr));
    SAY(c.s.accept(c.make_socket(), nullptr, nullptr));
}

CASE(accept4_takes_flags) {
    const int listener = c.make_listener();
    c.make_connected_to(listener);
    const int one = MAKE(c.s.accept4(listener, nullptr, nullptr, SOCK_NONBLOCK));
    SAY(c.s.fcntl(one, F_GETFL));
    SAY(c.s.fcntl(one, F_GETFD));
    c.make_connected_to(listener);
    const int other = MAKE(c.s.accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    SAY(c.s.fcntl(other, F_GETFL));
    SAY(c.s.fcntl(other, F_GETFD));
    SAY(c.s.accept4(listener, nullptr, nullptr, 1));
}

CASE(an_accepted_socket_does_not_inherit_nonblocking) {
    const int listener = c.make_listener();
    c.make_connected_to(listener);
    SAY(c.s.fcntl(listener, F_SETFL, O_NONBLOCK));
    c.await(listener, POLLIN);
    const int fd = MAKE(c.s.accept(listener, nullptr, nullptr));
    SAY(c.s.fcntl(fd, F_GETFL));
}

CASE(an_accepted_socket_inherits_options) {
    const int listener = c.make_listener();
    c.set(listener, SOL_SOCKET, SO_KEEPALIVE, 1);
    c.set(listener, IPPROTO_TCP, TCP_NODELAY, 1);
    const timeval time{0, 200000};
    SAY(c.s.setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)));
    c.make_connected_to(listener);
    const int fd = c.accept_from(listener);
    int value = -1;
    socklen_t length = sizeof(value);
    SAY(c.s.getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, &length));
    c.note(std::to_string(value));
    SAY(c.s.getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &length));
    c.note(std::to_string(value));
    SAY(c.s.recv(fd, c.buffer, 1, 0));
}

CASE(accept_gives_up_after_so_rcvtimeo) {
    const int listener = c.make_listener();
    const timeval time{0, 50000};
    SAY(c.s.setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)));
    SAY(c.s.accept(listener, nullptr, nullptr));
}

CASE(connections_are_accepted_in_their_order) {
    const int listener = c.make_listener();
    for (const char* text : {"first", "second", "third"}) {
        c.send_all(c.make_connected_to(listener), text);
    }
    for (int i = 0; i < 3; ++i) {
        const int fd = c.accept_from(listener);
        c.note_bytes("from", SAY(c.s.recv(fd, c.buffer, 10, 0)));
    }
}

CASE(data_comes_before_accept) {
    const int listener = c.make_listener();
    const int client = c.make_connected_to(listener);
    c.send_all(client, "early");
    SAY(c.s.shutdown(client, SHUT_WR));
    const int fd = c.accept_from(listener);
    c.note_bytes("early", SAY(c.s.recv(fd, c.buffer, 10, MSG_WAITALL)));
    SAY(c.s.recv(fd, c.buffer, 10, 0));
}

CASE(closing_the_listener_resets_who_was_not_accepted) {
    const int listener = c.make_listener();
    const int client = c.make_connected_to(listener);
    c.await(listener, POLLIN);
    c.forget(listener);
    SAY(c.s.close(listener));
    SAY(c.s.recv(client, c.buffer, 1, 0));
}

CASE(closing_the_listener_leaves_accepted_connections) {
    const Pair pair = c.make_pair(); // its listener is closed
    c.send_all(pair.client, "still");
    c.note_bytes("there", SAY(c.s.recv(pair.server, c.buffer, 5, MSG_WAITALL)));
}

CASE(connect_over_ipv6) {
    const Pair pair = c.make_pair(AF_INET6);
    c.send_all(pair.client, "six");
    c.note_bytes("got", SAY(c.s.recv(pair.server, c.buffer, 3, MSG_WAITALL)));
    c.note(text_of(c.address_of(pair.client)));
}

CASE(an_ipv6_listener_takes_ipv4_connections) {
    const int listener = c.make_socket(AF_INET6);
    c.set(listener, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    sockaddr_in6 any = loopback6(0);
    any.sin6_addr = in6addr_any;
    SAY(c.s.bind(listener, generic(any), sizeof(any)));
    SAY(c.s.listen(listener, 4));
    const sockaddr_in to = loopback(port_of(c.address_of(listener)));
    const int client = c.make_socket();
    SAY(c.s.connect(client, generic(to), sizeof(to)));
    sockaddr_storage peer{};
    socklen_t length = sizeof(peer);
    MAKE(c.s.accept(listener, generic(peer), &length));
    c.note(text_of(peer));
}

CASE(an_ipv6_only_listener_takes_no_ipv4) {
    need_loopback();
    const int listener = c.make_socket(AF_INET6);
    c.set(listener, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    sockaddr_in6 any = loopback6(0);
    any.sin6_addr = in6addr_any;
    SAY(c.s.bind(listener, generic(any), sizeof(any)));
    SAY(c.s.listen(listener, 4));
    const uint16_t port = port_of(c.address_of(listener));
    const sockaddr_in four = loopback(port);
    SAY(c.s.connect(c.make_socket(), generic(four), sizeof(four)));
    const sockaddr_in6 six = loopback6(port);
    note_way(c, listener, generic(six), sizeof(six));
}

CASE(an_ipv6_socket_connects_to_a_mapped_address) {
    const int listener = c.make_listener();
    sockaddr_in6 to = loopback6(port_of(c.address_of(listener)));
    inet_pton(AF_INET6, ("::ffff:" + node()).c_str(), &to.sin6_addr);
    const int fd = c.make_socket(AF_INET6);
    SAY(c.s.connect(fd, generic(to), sizeof(to)));
    MAKE(c.s.accept(listener, nullptr, nullptr));
    sockaddr_storage peer{};
    socklen_t length = sizeof(peer);
    SAY(c.s.getpeername(fd, generic(peer), &length));
    c.note(text_of(peer));
}

CASE(an_ipv6_only_socket_does_not) {
    sockaddr_in6 to = loopback6(closed_port());
    inet_pton(AF_INET6, ("::ffff:" + node()).c_str(), &to.sin6_addr);
    const int fd = c.make_socket(AF_INET6);
    c.set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    SAY(c.s.connect(fd, generic(to), sizeof(to)));
}

CASE(connect_to_af_unspec_makes_a_new_connection_possible) {
    const int listener = c.make_listener();
    const sockaddr_storage to = c.address_of(listener);
    const int fd = c.make_connected_to(listener);
    const int first = c.accept_from(listener);
    sockaddr none{};
    none.sa_family = AF_UNSPEC;
    SAY(c.s.connect(fd, &none, sizeof(none)));
    SAY(c.s.recv(first, c.buffer, 1, 0));
    SAY(c.s.send(fd, "x", 1, MSG_NOSIGNAL));
    SAY(c.s.connect(fd, generic(to), length_of(to)));
    const int second = c.accept_from(listener);
    c.send_all(fd, "again");
    c.note_bytes("got", SAY(c.s.recv(second, c.buffer, 5, MSG_WAITALL)));
}

CASE(the_backlog_holds_connections_back) {
    const int listener = c.make_listener(1);
    const sockaddr_storage to = c.address_of(listener);
    c.make_connected_to(listener);
    c.make_connected_to(listener);
    const int third = c.make_socket(AF_INET, SOCK_NONBLOCK);
    SAY(c.s.connect(third, generic(to), length_of(to)));
    pollfd one{third, POLLOUT, 0};
    SAY(c.s.poll(&one, 1, 100));
    SAY(c.s.connect(third, generic(to), length_of(to)));
    SAY(c.s.send(third, "x", 1, MSG_NOSIGNAL));
    SAY(c.s.recv(third, c.buffer, 1, 0));
    sockaddr_storage peer{};
    socklen_t length = sizeof(peer);
    SAY(c.s.getpeername(third, generic(peer), &length));
    c.note_poll("connecting", third, all_events);
    c.accept_from(listener);
    c.await(third, POLLOUT);
    c.note_error(third);
}

CASE(shutdown_of_a_connecting_socket) {
    const int listener = c.make_listener(0);
    const sockaddr_storage to = c.address_of(listener);
    c.make_connected_to(listener);
    const int fd = c.make_socket(AF_INET, SOCK_NONBLOCK);
    SAY(c.s.connect(fd, generic(to), length_of(to)));
    SAY(c.s.shutdown(fd, SHUT_RDWR));
    c.note_poll("given up", fd, all_events);
    SAY(c.s.recv(fd, c.buffer, 1, 0));
}

CASE(connect_to_af_unspec_keeps_the_port_that_was_asked_for) {
    need_loopback(); // other cores than tcp give the port back
    const int listener = c.make_listener();
    const sockaddr_storage to = c.address_of(listener);
    const int fd = c.make_socket();
    const sockaddr_in own = loopback(closed_port());
    const uint16_t port = ntohs(own.sin_port);
    SAY(c.s.bind(fd, generic(own), sizeof(own)));
    SAY(c.s.connect(fd, generic(to), length_of(to)));
    const int first = c.accept_from(listener);
    sockaddr none{};
    none.sa_family = AF_UNSPEC;
    SAY(c.s.connect(fd, &none, sizeof(none)));
    note_name(c, "free", fd, port);
    SAY(c.s.bind(fd, generic(own), sizeof(own)));
    SAY(c.s.recv(first, c.buffer, 1, 0)); // it must be gone: the next has the same two names
    SAY(c.s.connect(fd, generic(to), length_of(to)));
    note_name(c, "again", fd, port);
    sockaddr_storage peer{};
    socklen_t length = sizeof(peer);
    MAKE(c.s.accept(listener, generic(peer), &length));
    c.note(port_of(peer) == port ? "from that port" : "from another port");
}

CASE(a_larger_backlog_lets_in_who_was_held_back) {
    const int listener = c.make_listener(0);
    const sockaddr_storage to = c.address_of(listener);
    c.make_connected_to(listener);
    const int second = c.make_socket(AF_INET, SOCK_NONBLOCK);
    SAY(c.s.connect(second, generic(to), length_of(to)));
    pollfd one{second, POLLOUT, 0};
    SAY(c.s.poll(&one, 1, 100));
    SAY(c.s.listen(listener, 8));
    c.note_events("let in", static_cast<unsigned short>(c.await(second, POLLOUT, in_time)));
    c.note_error(second);
    MAKE(c.s.accept(listener, nullptr, nullptr));
    MAKE(c.s.accept(listener, nullptr, nullptr));
}

CASE(close_while_connecting_to_a_closed_port) {
    const sockaddr_in to = loopback(closed_port());
    const int fd = c.make_socket(AF_INET, SOCK_NONBLOCK);
    SAY(c.s.connect(fd, generic(to), sizeof(to)));
    c.forget(fd);
    SAY(c.s.close(fd));
    SAY(c.s.getsockopt(fd, SOL_SOCKET, SO_ERROR, nullptr, nullptr));
}
