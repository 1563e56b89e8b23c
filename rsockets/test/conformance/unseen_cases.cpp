// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What the peer did, and no call has seen yet: the first call reports it, whichever it is. Cases do not poll before.
#include "rsockets/test/conformance/conformance.hpp"
#include "rsockets/test/conformance/set.hpp"

#include <cerrno>
#include <cstring>

#include <unistd.h>

using namespace conformance;

namespace {

void close_now(Case& c, int fd) {
    c.forget(fd);
    c.s.close(fd);
}

void reset(Case& c, int fd) {
    const linger now{1, 0};
    c.s.setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    close_now(c, fd);
}

// Sends no bytes until that fails, or `error` is how it fails.
void send_nothing_until(Case& c, int fd, int error) {
    for (int i = 0; i < 5000; ++i) {
        if (c.s.send(fd, c.buffer, 0, MSG_NOSIGNAL) != 0 && errno == error) {
            c.note(std::string(strerrorname_np(error)) + " comes");
            return;
        }
        usleep(1000);
    }
    c.note(std::string(strerrorname_np(error)) + " never comes");
}

void disconnect(Case& c, int fd) {
    sockaddr nowhere{};
    nowhere.sa_family = AF_UNSPEC;
    SAY(c.s.connect(fd, &nowhere, sizeof(nowhere)));
}

} // namespace

CASE(a_send_of_no_bytes_sees_a_reset_by_itself) {
    const Pair pair = c.make_pair();
    reset(c, pair.client);
    send_nothing_until(c, pair.server, ECONNRESET);
    SAY(c.s.send(pair.server, "x", 1, MSG_NOSIGNAL));
}

CASE(a_send_after_ones_own_shutdown_sees_a_reset_by_itself) {
    const Pair pair = c.make_pair();
    SAY(c.s.shutdown(pair.server, SHUT_WR));
    reset(c, pair.client);
    send_nothing_until(c, pair.server, ECONNRESET);
    SAY(c.s.send(pair.server, "x", 1, MSG_NOSIGNAL));
}

CASE(a_send_after_the_end_and_a_reset_is_a_broken_pipe) {
    for (int wait = 1; wait < 1000; wait *= 2) { // until the reset is there first
        const Pair pair = c.make_pair();
        c.s.shutdown(pair.client, SHUT_WR);
        c.await(pair.server, POLLRDHUP);
        reset(c, pair.client);
        c.s.poll(nullptr, 0, wait);
        if (c.s.send(pair.server, "x", 1, MSG_NOSIGNAL) < 0) {
            c.note(strerrorname_np(errno));
            return;
        }
    }
    c.note("it is always taken");
}

// With bytes unread, which both ends were shut down before.
CASE(a_reset_after_both_ends_changes_nothing) {
    const Pair pair = c.make_pair();
    c.send_all(pair.server, "unread");
    SAY(c.s.shutdown(pair.server, SHUT_WR));
    c.await(pair.client, POLLRDHUP);
    SAY(c.s.shutdown(pair.client, SHUT_WR));
    c.await(pair.server, POLLHUP);
    close_now(c, pair.client);
    c.s.poll(nullptr, 0, a_moment);
    c.note_poll("ended", pair.server, POLLIN | POLLOUT | POLLRDHUP);
    c.note_error(pair.server);
    SAY(c.s.send(pair.server, "x", 1, MSG_NOSIGNAL));
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
}

CASE(a_client_still_tells_the_name_of_a_peer_that_has_closed) {
    const int listener = c.make_listener();
    const sockaddr_storage to = c.address_of(listener);
    const int client = c.make_connected_to(listener);
    close_now(c, c.accept_from(listener));
    c.await(client, POLLRDHUP);
    c.s.poll(nullptr, 0, a_moment); // the fabric's connection may end after the stream
    sockaddr_storage peer{};
    socklen_t length = sizeof(peer);
    SAY(c.s.getpeername(client, generic(peer), &length));
    c.note(std::to_string(length));
    c.note(text_of(peer, true) == text_of(to, true) ? "the listener's" : "another");
}

// Whatever the program passed to connect besides the address itself.
CASE(getpeername_tells_the_address_alone) {
    const int listener = c.make_listener();
    const int listener6 = c.make_listener(1, AF_INET6);
    sockaddr_storage to = c.address_of(listener);
    memset(reinterpret_cast<sockaddr_in&>(to).sin_zero, 1, sizeof(sockaddr_in::sin_zero));
    sockaddr_storage to6 = c.address_of(listener6);
    reinterpret_cast<sockaddr_in6&>(to6).sin6_scope_id = 1;
    constexpr socklen_t without_scope = 24;
    const int client = c.make_socket();
    const int client6 = c.make_socket(AF_INET6);
    const int other6 = c.make_socket(AF_INET6);
    SAY(c.s.connect(client, generic(to), sizeof(to)));
    SAY(c.s.connect(client6, generic(to6), sizeof(to6)));
    SAY(c.s.connect(other6, generic(to6), without_scope));
    for (const int fd : {client, client6, other6}) {
        sockaddr_storage peer;
        memset(&peer, 9, sizeof(peer));
        socklen_t length = sizeof(peer);
        SAY(c.s.getpeername(fd, generic(peer), &length));
        c.note(std::to_string(length) + " " + text_of(peer));
        if (peer.ss_family == AF_INET) {
            c.note(std::to_string(reinterpret_cast<const sockaddr_in&>(peer).sin_zero[0]));
        } else {
            const auto& six = reinterpret_cast<const sockaddr_in6&>(peer);
            c.note(std::to_string(six.sin6_scope_id) + " " + std::to_string(six.sin6_flowinfo));
        }
    }
}

CASE(a_connection_to_the_wildcard_tells_the_loopback_address) {
    need_loopback();
    const int listener = c.make_listener();
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port_of(c.address_of(listener)));
    const int client = c.make_socket();
    SAY(c.s.connect(client, generic(to), sizeof(to)));
    sockaddr_storage peer{};
    socklen_t length = sizeof(peer);
    SAY(c.s.getpeername(client, generic(peer), &length));
    c.note(text_of(peer));
}

CASE(giving_up_what_has_ended_leaves_no_error) {
    const Pair pair = c.make_pair();
    SAY(c.s.shutdown(pair.client, SHUT_WR));
    SAY(c.s.shutdown(pair.server, SHUT_WR));
    c.await(pair.server, POLLHUP);
    c.await(pair.client, POLLHUP);
    disconnect(c, pair.server);
    c.note_error(pair.server);
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
}

CASE(giving_up_a_broken_pipe_leaves_its_error) {
    const Pair pair = c.make_pair();
    close_now(c, pair.server);
    c.await(pair.client, POLLRDHUP);
    SAY(c.s.send(pair.client, "x", 1, MSG_NOSIGNAL));
    c.await(pair.client, POLLERR);
    disconnect(c, pair.client);
    c.note_error(pair.client);
    SAY(c.s.recv(pair.client, c.buffer, 1, 0));
}

CASE(giving_up_what_goes_on_is_a_reset) {
    const Pair pair = c.make_pair();
    disconnect(c, pair.client);
    c.note_error(pair.client);
    SAY(c.s.recv(pair.client, c.buffer, 1, 0));
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
}
