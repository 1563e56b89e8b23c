// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// epoll with EPOLLET: each change is reported once. edge_cases.cpp has programs that do not read until EAGAIN.
#include "rsockets/test/conformance/conformance.hpp"
#include "rsockets/test/conformance/set.hpp"

using namespace conformance;

CASE(epoll_of_edges_tells_once) {
    const Pair pair = c.make_pair();
    const Set set(c);
    set.control(EPOLL_CTL_ADD, pair.server, EPOLLIN | EPOLLET, 1);
    c.send_all(pair.client, "x");
    set.note("first", in_time);
    set.note("second", a_moment);
    c.send_all(pair.client, "y");
    set.note("more", in_time);
    set.note("once", a_moment);
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
    set.note("one is left", a_moment);
}

CASE(epoll_of_edges_tells_what_is_there_when_added) {
    const Pair pair = c.make_pair();
    c.send_all(pair.client, "x");
    c.await(pair.server, POLLIN);
    const Set set(c);
    set.control(EPOLL_CTL_ADD, pair.server, EPOLLIN | EPOLLOUT | EPOLLET, 1);
    set.note("added");
    set.note("once", a_moment);
    set.control(EPOLL_CTL_MOD, pair.server, EPOLLIN | EPOLLOUT | EPOLLET, 2);
    set.note("modified");
}

CASE(epoll_of_edges_tells_of_room) {
    const Pair pair = c.make_pair();
    const Set set(c);
    set.control(EPOLL_CTL_ADD, pair.client, EPOLLOUT | EPOLLET, 1);
    set.note("space");
    set.note("once", a_moment);
    const size_t total = c.fill(pair.client);
    set.note("full", a_moment);
    c.drain(pair.server, total);
    set.note("space again", in_time);
}

CASE(epoll_of_edges_tells_of_the_end) {
    const Pair pair = c.make_pair();
    const Set set(c);
    set.control(EPOLL_CTL_ADD, pair.server, EPOLLIN | EPOLLRDHUP | EPOLLET, 1);
    SAY(c.s.shutdown(pair.client, SHUT_WR));
    set.note("end", in_time);
    set.note("once", a_moment);
}

// The edge of the end must come though no read has said that there is nothing left.
CASE(epoll_of_edges_tells_of_the_end_after_a_short_read) {
    const Pair pair = c.make_pair();
    const Set set(c);
    set.control(EPOLL_CTL_ADD, pair.server, EPOLLIN | EPOLLET, 1);
    c.send_all(pair.client, "xy");
    set.note("data", in_time);
    SAY(c.s.recv(pair.server, c.buffer, 100, 0));
    set.note("once", a_moment);
    SAY(c.s.shutdown(pair.client, SHUT_WR));
    set.note("end", in_time);
    SAY(c.s.recv(pair.server, c.buffer, 100, MSG_DONTWAIT));
}

CASE(epoll_of_edges_tells_of_the_close_after_a_short_read) {
    const Pair pair = c.make_pair();
    const Set set(c);
    set.control(EPOLL_CTL_ADD, pair.server, EPOLLIN | EPOLLET, 1);
    c.send_all(pair.client, "xy");
    set.note("data", in_time);
    SAY(c.s.recv(pair.server, c.buffer, 100, 0));
    c.forget(pair.client);
    SAY(c.s.close(pair.client));
    set.note("end", in_time);
    SAY(c.s.recv(pair.server, c.buffer, 100, MSG_DONTWAIT));
}

CASE(epoll_of_edges_tells_of_the_end_of_what_is_not_read) {
    const Pair pair = c.make_pair();
    const Set set(c);
    set.control(EPOLL_CTL_ADD, pair.server, EPOLLIN | EPOLLET, 1);
    c.send_all(pair.client, "xy");
    set.note("data", in_time);
    SAY(c.s.shutdown(pair.client, SHUT_WR));
    set.note("end", in_time);
}

CASE(epoll_of_edges_tells_of_data_after_a_short_read) {
    const Pair pair = c.make_pair();
    const Set set(c);
    set.control(EPOLL_CTL_ADD, pair.server, EPOLLIN | EPOLLET, 1);
    for (int i = 0; i < 3; ++i) {
        c.send_all(pair.client, "xy");
        set.note("data", in_time);
        SAY(c.s.recv(pair.server, c.buffer, 100, 0));
    }
}

CASE(epoll_of_edges_of_room_tells_of_a_reset) {
    const Pair pair = c.make_pair();
    const Set set(c);
    set.control(EPOLL_CTL_ADD, pair.server, EPOLLOUT | EPOLLET, 1);
    set.note("space");
    set.note("once", a_moment);
    const linger now{1, 0};
    c.s.setsockopt(pair.client, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    c.forget(pair.client);
    SAY(c.s.close(pair.client));
    set.note("reset", in_time);
}

CASE(epoll_of_edges_tells_of_room_only_where_asked) {
    const Pair pair = c.make_pair();
    const Set space_set(c);
    const Set both(c);
    space_set.control(EPOLL_CTL_ADD, pair.server, EPOLLOUT | EPOLLET, 1);
    both.control(EPOLL_CTL_ADD, pair.server, EPOLLIN | EPOLLOUT | EPOLLET, 2);
    space_set.note("space");
    both.note("space");
    c.send_all(pair.client, "x");
    both.note("data", in_time);
    space_set.note("nothing", a_moment);
}

CASE(epoll_of_edges_tells_of_a_reset) {
    const Pair pair = c.make_pair();
    const Set set(c);
    set.control(EPOLL_CTL_ADD, pair.server, EPOLLIN | EPOLLET, 1);
    c.send_all(pair.client, "xy");
    set.note("data", in_time);
    SAY(c.s.recv(pair.server, c.buffer, 100, 0));
    const linger now{1, 0};
    c.s.setsockopt(pair.client, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    c.forget(pair.client);
    SAY(c.s.close(pair.client));
    set.note("reset", in_time);
}

CASE(epoll_of_edges_tells_of_each_connection) {
    const int listener = c.make_listener();
    const Set set(c);
    set.control(EPOLL_CTL_ADD, listener, EPOLLIN | EPOLLET, 1);
    c.make_connected_to(listener);
    set.note("one", in_time);
    set.note("once", a_moment);
    c.make_connected_to(listener);
    set.note("two", in_time);
}
