// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// epoll: sets within sets, and edges of sockets that connect or lose their peer.
#include "rsockets/test/conformance/conformance.hpp"
#include "rsockets/test/conformance/set.hpp"

#include <cstring>

#include <unistd.h>

using namespace conformance;

CASE(a_set_within_a_set) {
    const Pair pair = c.make_pair();
    const Set inner(c);
    const Set outer(c);
    SAY(outer.control(EPOLL_CTL_ADD, inner.fd, EPOLLIN, 1));
    SAY(inner.control(EPOLL_CTL_ADD, pair.server, EPOLLIN, 2));
    outer.note("idle");
    c.send_all(pair.client, "x");
    outer.note("the inner", in_time);
    inner.note("the socket");
    SAY(inner.control(EPOLL_CTL_ADD, outer.fd, EPOLLIN, 3));
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
    outer.note("read", a_moment);
}

CASE(edges_of_a_set_within_a_set) {
    const Pair pair = c.make_pair();
    const Set inner(c);
    const Set outer(c);
    inner.control(EPOLL_CTL_ADD, pair.server, EPOLLIN, 1);
    SAY(outer.control(EPOLL_CTL_ADD, inner.fd, EPOLLIN | EPOLLET, 2));
    outer.note("nothing", a_moment);
    for (int round = 0; round < 3; ++round) {
        c.send_all(pair.client, "x");
        outer.note("an arrival", in_time);
        outer.note("told already", a_moment);
        inner.note("the member", in_time);
        SAY(c.s.recv(pair.server, c.buffer, 2, 0));
        inner.note("all is read", a_moment);
    }
    c.send_all(pair.client, "x");
    outer.note("not read", in_time);
    SAY(outer.control(EPOLL_CTL_MOD, inner.fd, EPOLLIN | EPOLLET, 3));
    outer.note("changed", in_time);
    outer.note("told already", a_moment);
}

CASE(a_set_within_a_set_that_shows_once) {
    const Pair pair = c.make_pair();
    const Set inner(c);
    const Set outer(c);
    inner.control(EPOLL_CTL_ADD, pair.server, EPOLLIN, 1);
    SAY(outer.control(EPOLL_CTL_ADD, inner.fd, EPOLLIN | EPOLLONESHOT, 2));
    c.send_all(pair.client, "x");
    outer.note("shot", in_time);
    outer.note("disarmed", a_moment);
    SAY(outer.control(EPOLL_CTL_MOD, inner.fd, EPOLLIN | EPOLLONESHOT, 3));
    outer.note("armed", in_time);
    outer.note("disarmed", a_moment);
}

CASE(a_set_that_was_asked_is_still_ready_in_another_one) {
    const int listener = c.make_listener();
    const Set inner(c);
    const Set outer(c);
    inner.control(EPOLL_CTL_ADD, listener, EPOLLIN, 1);
    outer.control(EPOLL_CTL_ADD, inner.fd, EPOLLIN, 2);
    outer.note("nobody", a_moment);
    c.make_connected_to(listener);
    inner.note("the inner one", in_time);
    outer.note("the outer one", in_time);
    c.note_poll("by poll", inner.fd, POLLIN);
    c.accept_from(listener);
    inner.note("the inner one", a_moment);
    outer.note("the outer one", a_moment);
}

CASE(a_closed_set_is_no_member) {
    int ends[2];
    if (pipe(ends) != 0 || write(ends[1], "x", 1) != 1) {
        throw Failure("pipe");
    }
    const Pair pair = c.make_pair();
    const Set outer(c);
    {
        const Set inner(c);
        SAY(inner.control(EPOLL_CTL_ADD, ends[0], EPOLLIN, 1));
        SAY(inner.control(EPOLL_CTL_ADD, pair.server, EPOLLIN, 2));
        SAY(outer.control(EPOLL_CTL_ADD, inner.fd, EPOLLIN, 3));
        outer.note("open", in_time);
        c.forget(inner.fd);
        SAY(c.s.close(inner.fd));
    }
    outer.note("closed", a_moment);
    c.send_all(pair.client, "x");
    outer.note("closed", a_moment);
    close(ends[0]);
    close(ends[1]);
}

CASE(edges_tell_of_each_connect_of_a_socket) {
    const int listener = c.make_listener();
    const sockaddr_storage to = c.address_of(listener);
    const sockaddr_in closed = loopback(closed_port());
    const int fd = c.make_socket(AF_INET, SOCK_NONBLOCK);
    const Set set(c);
    SAY(set.control(EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 1));
    set.note("not connected", in_time);
    for (int round = 0; round < 2; ++round) {
        SAY(c.s.connect(fd, generic(closed), sizeof(closed)));
        set.note("refused", in_time);
        int error = 0;
        socklen_t length = sizeof(error);
        SAY(c.s.getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length));
        c.note(strerror(error));
        SAY(c.s.connect(fd, generic(closed), sizeof(closed))); // the first one's outcome
        set.note("may connect again", a_moment);
    }
    c.s.connect(fd, generic(to), length_of(to));
    set.note("connected", in_time);
    const int accepted = c.accept_from(listener);
    c.send_all(accepted, "x");
    set.note("a byte", in_time);
    sockaddr nowhere{};
    nowhere.sa_family = AF_UNSPEC;
    SAY(c.s.connect(fd, &nowhere, sizeof(nowhere)));
    set.note("given up", in_time);
    c.s.connect(fd, generic(to), length_of(to));
    set.note("connected again", in_time);
    c.accept_from(listener);
}

CASE(an_edge_tells_that_a_send_has_found_the_peer_gone) {
    const Pair pair = c.make_pair();
    const Set set(c);
    SAY(set.control(EPOLL_CTL_ADD, pair.server, EPOLLIN | EPOLLRDHUP | EPOLLET, 1));
    c.forget(pair.client);
    c.s.close(pair.client);
    set.note("the end", in_time);
    set.note("told already", a_moment);
    SAY(c.s.send(pair.server, "x", 1, MSG_NOSIGNAL));
    set.note("gone", in_time);
}

CASE(a_poll_of_nothing_hears_that_a_send_has_found_the_peer_gone) {
    const Pair pair = c.make_pair();
    c.forget(pair.client);
    c.s.close(pair.client);
    c.await(pair.server, POLLRDHUP);
    const int id = thread_id();
    c.run([&] {
        await_sleep(id);
        c.s.send(pair.server, "x", 1, MSG_NOSIGNAL);
    });
    pollfd one{pair.server, 0, 0};
    SAY(c.s.poll(&one, 1, in_time));
    c.note_events("gone", static_cast<unsigned>(one.revents));
    c.join();
}

// Each set is told of what has come, whoever else was told of it, and sleeps again or not.
CASE(a_set_of_edges_leaves_the_event_to_another_set) {
    const Pair pair = c.make_pair();
    const Set levels(c);
    const Set edges(c);
    SAY(levels.control(EPOLL_CTL_ADD, pair.server, EPOLLIN, 1));
    SAY(edges.control(EPOLL_CTL_ADD, pair.server, EPOLLIN | EPOLLET, 2));
    levels.note("nothing yet");
    edges.note("nothing yet");
    c.send_all(pair.client, "x");
    edges.note("by an edge", in_time);
    edges.note("once");
    levels.note("by a level", in_time);
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
    levels.note("read");
    SAY(c.s.shutdown(pair.client, SHUT_WR));
    edges.note("the end by an edge", in_time);
    levels.note("the end by a level", in_time);
}

CASE(a_poll_for_another_event_leaves_what_has_come_to_a_set) {
    const Pair pair = c.make_pair();
    const Set set(c);
    SAY(set.control(EPOLL_CTL_ADD, pair.server, EPOLLIN, 1));
    set.note("nothing yet");
    c.send_all(pair.client, "x");
    pollfd one{pair.server, POLLRDHUP, 0};
    SAY(c.s.poll(&one, 1, a_moment));
    set.note("a byte", in_time);
}
