// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// How connections end: shutdown, close, reset, and who is told what.
#include "rsockets/test/conformance/conformance.hpp"

#include <cerrno>
#include <csignal>
#include <cstring>

#include <unistd.h>

using namespace conformance;

namespace {

constexpr short all_events = POLLIN | POLLPRI | POLLOUT | POLLRDNORM | POLLWRNORM | POLLRDHUP;

void note_peer(Case& c, int fd) {
    sockaddr_storage peer{};
    socklen_t length = sizeof(peer);
    SAY(c.s.getpeername(fd, generic(peer), &length));
}

void close_now(Case& c, int fd) {
    c.forget(fd);
    SAY(c.s.close(fd));
}

// Closes with a reset.
void reset(Case& c, int fd) {
    const linger now{1, 0};
    c.s.setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    close_now(c, fd);
}

// Resets from another thread, once this one waits in a call.
void reset_when_asleep(Case& c, int fd) {
    const int id = thread_id();
    c.run([&c, id, fd] {
        await_sleep(id);
        const linger now{1, 0};
        c.s.setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
        c.forget(fd);
        c.s.close(fd);
    });
}

// Sends more than fits to a peer that resets meanwhile.
void send_into_a_reset(Case& c, const Pair& pair) {
    const std::vector<char> data(size_t{32} << 20);
    reset_when_asleep(c, pair.server);
    const ssize_t sent = c.s.send(pair.client, data.data(), data.size(), MSG_NOSIGNAL);
    const int error = errno;
    c.note(sent < 0 ? strerrorname_np(error) : sent > 0 && sent + 0UL < data.size() ? "some" : std::to_string(sent));
    c.join();
}

// Tries what is no event for any call that waits until it is so; says whether it came to be.
void await_by_trying(Case& c, const char* what, const std::function<bool()>& is_so) {
    for (int i = 0; i < 5000; ++i) {
        if (is_so()) {
            c.note(std::string(what) + " comes");
            return;
        }
        usleep(1000);
    }
    c.note(std::string(what) + " never comes");
}

int state_of(Case& c, int fd) {
    tcp_info info{};
    socklen_t length = sizeof(info);
    return c.s.getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 ? info.tcpi_state : -1;
}

volatile sig_atomic_t pipes = 0;
void on_pipe(int) { pipes = pipes + 1; }

} // namespace

CASE(the_peers_close_is_the_end) {
    const Pair pair = c.make_pair();
    close_now(c, pair.client);
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
    SAY(c.s.read(pair.server, c.buffer, 1));
}

CASE(bytes_come_before_the_end) {
    const Pair pair = c.make_pair();
    c.send_all(pair.client, "last words");
    close_now(c, pair.client);
    c.note_bytes("all", SAY(c.s.recv(pair.server, c.buffer, 100, MSG_WAITALL)));
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
}

CASE(close_delivers_what_the_peer_had_no_room_for) {
    const Pair pair = c.make_pair();
    const size_t total = c.fill(pair.client);
    close_now(c, pair.client);
    c.drain(pair.server, total);
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
}

CASE(close_does_not_wait) {
    const Pair pair = c.make_pair();
    c.fill(pair.client);
    timespec before{};
    timespec after{};
    clock_gettime(CLOCK_MONOTONIC, &before);
    close_now(c, pair.client);
    clock_gettime(CLOCK_MONOTONIC, &after);
    c.note(after.tv_sec - before.tv_sec < 2 ? "at once" : "it waits");
}

CASE(poll_after_the_peers_shutdown) {
    const Pair pair = c.make_pair();
    SAY(c.s.shutdown(pair.client, SHUT_WR));
    c.await(pair.server, POLLRDHUP);
    c.note_poll("half closed", pair.server, all_events);
    c.note_poll("by itself", pair.client, all_events);
}

CASE(poll_after_the_peers_close) {
    const Pair pair = c.make_pair();
    close_now(c, pair.client);
    c.await(pair.server, POLLRDHUP);
    c.note_poll("closed", pair.server, all_events);
    c.note_poll("events of none", pair.server, 0);
}

CASE(poll_after_both_shutdowns) {
    const Pair pair = c.make_pair();
    SAY(c.s.shutdown(pair.client, SHUT_WR));
    SAY(c.s.shutdown(pair.server, SHUT_WR));
    c.await(pair.server, POLLRDHUP);
    c.await(pair.client, POLLRDHUP);
    c.note_poll("server", pair.server, all_events);
    c.note_poll("client", pair.client, all_events);
    c.note_poll("events of none", pair.server, 0);
}

CASE(the_end_shows_before_the_bytes_are_read) {
    const Pair pair = c.make_pair();
    c.send_all(pair.client, "abc");
    SAY(c.s.shutdown(pair.client, SHUT_WR));
    c.await(pair.server, POLLRDHUP);
    c.note_poll("unread", pair.server, all_events);
    SAY(c.s.recv(pair.server, c.buffer, 10, 0));
    c.note_poll("read", pair.server, all_events);
}

CASE(a_half_closed_connection_still_goes_the_other_way) {
    const Pair pair = c.make_pair();
    SAY(c.s.shutdown(pair.client, SHUT_WR));
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
    SAY(c.s.send(pair.server, "answer", 6, 0));
    c.note_bytes("got", SAY(c.s.recv(pair.client, c.buffer, 6, MSG_WAITALL)));
    close_now(c, pair.server);
    SAY(c.s.recv(pair.client, c.buffer, 1, 0));
}

CASE(send_after_ones_own_shutdown) {
    const Pair pair = c.make_pair();
    SAY(c.s.shutdown(pair.client, SHUT_WR));
    SAY(c.s.send(pair.client, "x", 1, MSG_NOSIGNAL));
    SAY(c.s.send(pair.client, "x", 0, MSG_NOSIGNAL));
    SAY(c.s.shutdown(pair.client, SHUT_WR));
}

CASE(send_after_the_peers_close) {
    const Pair pair = c.make_pair();
    close_now(c, pair.server);
    c.await(pair.client, POLLRDHUP);
    SAY(c.s.send(pair.client, "x", 1, MSG_NOSIGNAL));
    c.await(pair.client, POLLERR);
    c.note_poll("after it", pair.client, all_events);
    SAY(c.s.send(pair.client, "x", 1, MSG_NOSIGNAL));
    SAY(c.s.send(pair.client, "x", 1, MSG_NOSIGNAL));
    SAY(c.s.recv(pair.client, c.buffer, 1, 0));
    note_peer(c, pair.client);
}

CASE(so_error_after_a_send_to_a_closed_peer) {
    const Pair pair = c.make_pair();
    close_now(c, pair.server);
    c.await(pair.client, POLLRDHUP);
    SAY(c.s.send(pair.client, "x", 1, MSG_NOSIGNAL));
    c.await(pair.client, POLLERR);
    c.note_error(pair.client);
    c.note_error(pair.client);
}

CASE(a_broken_pipe_raises_sigpipe) {
    struct sigaction action {};
    struct sigaction before {};
    action.sa_handler = on_pipe;
    sigaction(SIGPIPE, &action, &before);
    pipes = 0;
    const Pair pair = c.make_pair();
    SAY(c.s.shutdown(pair.client, SHUT_WR));
    SAY(c.s.send(pair.client, "x", 1, 0));
    c.note(std::to_string(pipes));
    SAY(c.s.write(pair.client, "x", 1));
    c.note(std::to_string(pipes));
    SAY(c.s.send(pair.client, "x", 1, MSG_NOSIGNAL));
    c.note(std::to_string(pipes));
    SAY(c.s.send(c.make_socket(), "x", 1, 0));
    c.note(std::to_string(pipes));
    sigaction(SIGPIPE, &before, nullptr);
}

CASE(shutdown_of_reading_is_local) {
    const Pair pair = c.make_pair();
    SAY(c.s.shutdown(pair.client, SHUT_RD));
    SAY(c.s.recv(pair.client, c.buffer, 1, 0));
    c.note_poll("shut", pair.client, all_events);
    c.note_poll("the other", pair.server, all_events);
    SAY(c.s.send(pair.server, "x", 1, 0));
    SAY(c.s.send(pair.client, "y", 1, 0));
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
}

// Before any call that reads could find the end.
CASE(shutdown_of_reading_is_told_at_once) {
    const Pair pair = c.make_pair();
    SAY(c.s.shutdown(pair.client, SHUT_RD));
    c.note_poll("shut", pair.client, all_events);
    SAY(c.s.recv(pair.client, c.buffer, 1, MSG_DONTWAIT));
    c.note_poll("still", pair.client, all_events);
}

CASE(shutdown_of_reading_leaves_what_has_come) {
    const Pair pair = c.make_pair();
    c.send_all(pair.client, "come");
    c.await(pair.server, POLLIN);
    SAY(c.s.shutdown(pair.server, SHUT_RD));
    c.note_bytes("got", SAY(c.s.recv(pair.server, c.buffer, 100, 0)));
    SAY(c.s.recv(pair.server, c.buffer, 100, 0));
}

CASE(shutdown_of_both) {
    const Pair pair = c.make_pair();
    SAY(c.s.shutdown(pair.client, SHUT_RDWR));
    SAY(c.s.recv(pair.client, c.buffer, 1, 0));
    SAY(c.s.send(pair.client, "x", 1, MSG_NOSIGNAL));
    c.note_poll("shut", pair.client, all_events);
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
    c.note_poll("the other", pair.server, all_events);
}

CASE(shutdown_of_both_refuses_what_comes) {
    const Pair pair = c.make_pair();
    SAY(c.s.shutdown(pair.server, SHUT_RDWR));
    c.await(pair.client, POLLRDHUP);
    pollfd one{pair.client, 0, 0};
    ssize_t sent = 1;
    // The first is always taken; how soon it is answered is not the same everywhere.
    for (int i = 0; i < 10 && sent == 1 && one.revents == 0; ++i) {
        sent = c.s.send(pair.client, "x", 1, MSG_NOSIGNAL);
        c.s.poll(&one, 1, 200);
    }
    c.note_events("refused", static_cast<unsigned short>(one.revents));
    c.note_poll("all", pair.client, all_events);
    c.note_error(pair.client);
    SAY(c.s.send(pair.client, "x", 1, MSG_NOSIGNAL));
    SAY(c.s.recv(pair.client, c.buffer, 1, 0));
    note_peer(c, pair.client);
}

CASE(shutdown_of_reading_twice) {
    const Pair pair = c.make_pair();
    SAY(c.s.shutdown(pair.server, SHUT_RD));
    SAY(c.s.shutdown(pair.server, SHUT_RD));
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
    SAY(c.s.shutdown(pair.client, SHUT_WR));
    c.s.shutdown(pair.server, SHUT_WR);
    c.await(pair.server, POLLHUP);
    SAY(c.s.shutdown(pair.server, SHUT_RD));
}

CASE(what_comes_after_a_shutdown_of_reading_is_still_read) {
    const Pair pair = c.make_pair();
    SAY(c.s.shutdown(pair.server, SHUT_RD));
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
    SAY(c.s.send(pair.client, "late", 4, 0));
    int there = 0;
    await_by_trying(c, "it", [&] {
        there = static_cast<int>(c.s.recv(pair.server, c.buffer, 100, MSG_DONTWAIT));
        return there > 0;
    });
    c.note_bytes("got", there);
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
}

CASE(shutdown_of_nothing_known) {
    const Pair pair = c.make_pair();
    SAY(c.s.shutdown(pair.client, 3));
    SAY(c.s.shutdown(pair.client, -1));
    SAY(c.s.shutdown(c.make_socket(), 7));
}

CASE(shutdown_after_the_end_of_both) {
    const Pair pair = c.make_pair();
    SAY(c.s.shutdown(pair.client, SHUT_WR));
    SAY(c.s.shutdown(pair.server, SHUT_WR));
    c.await(pair.server, POLLHUP);
    SAY(c.s.shutdown(pair.server, SHUT_WR));
    note_peer(c, pair.server);
}

CASE(linger_of_zero_resets) {
    const Pair pair = c.make_pair();
    reset(c, pair.client);
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
    SAY(c.s.send(pair.server, "x", 1, MSG_NOSIGNAL));
    note_peer(c, pair.server);
}

CASE(a_reset_connection_polls) {
    const Pair pair = c.make_pair();
    reset(c, pair.client);
    c.await(pair.server, POLLERR);
    c.note_poll("reset", pair.server, all_events);
    c.note_error(pair.server);
    c.note_poll("told", pair.server, all_events);
    c.note_error(pair.server);
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
}

CASE(send_tells_of_a_reset_once) {
    const Pair pair = c.make_pair();
    reset(c, pair.client);
    c.await(pair.server, POLLERR);
    SAY(c.s.send(pair.server, "x", 1, MSG_NOSIGNAL));
    SAY(c.s.send(pair.server, "x", 1, MSG_NOSIGNAL));
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
}

CASE(bytes_that_came_before_a_reset_are_there) {
    const Pair pair = c.make_pair();
    c.send_all(pair.client, "come");
    c.await(pair.server, POLLIN);
    reset(c, pair.client);
    c.await(pair.server, POLLERR);
    c.note_poll("unread", pair.server, all_events);
    c.note_bytes("got", SAY(c.s.recv(pair.server, c.buffer, 2, 0)));
    c.note_bytes("got", SAY(c.s.recv(pair.server, c.buffer, 100, MSG_WAITALL)));
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
}

CASE(a_reset_within_wait_all_is_told_by_the_next_call) {
    const Pair pair = c.make_pair();
    c.send_all(pair.client, "some");
    c.await(pair.server, POLLIN);
    reset_when_asleep(c, pair.client);
    c.note_bytes("got", SAY(c.s.recv(pair.server, c.buffer, 100, MSG_WAITALL)));
    c.join();
    c.note_poll("reset", pair.server, all_events);
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
}

CASE(a_reset_within_wait_all_is_told_by_so_error) {
    const Pair pair = c.make_pair();
    c.send_all(pair.client, "some");
    c.await(pair.server, POLLIN);
    reset_when_asleep(c, pair.client);
    SAY(c.s.recv(pair.server, c.buffer, 100, MSG_WAITALL));
    c.join();
    c.note_error(pair.server);
    c.note_error(pair.server);
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
}

CASE(a_reset_within_wait_all_of_nothing_is_told_at_once) {
    const Pair pair = c.make_pair();
    reset_when_asleep(c, pair.client);
    SAY(c.s.recv(pair.server, c.buffer, 100, MSG_WAITALL));
    c.join();
    c.note_error(pair.server);
    SAY(c.s.recv(pair.server, c.buffer, 100, MSG_WAITALL));
}

CASE(a_reset_within_send_is_told_by_the_next_call) {
    const Pair pair = c.make_pair();
    send_into_a_reset(c, pair);
    SAY(c.s.send(pair.client, "x", 1, MSG_NOSIGNAL));
    SAY(c.s.send(pair.client, "x", 1, MSG_NOSIGNAL));
    SAY(c.s.recv(pair.client, c.buffer, 1, 0));
}

CASE(a_reset_within_send_is_told_by_so_error) {
    const Pair pair = c.make_pair();
    send_into_a_reset(c, pair);
    c.note_poll("reset", pair.client, all_events);
    c.note_error(pair.client);
    c.note_error(pair.client);
    SAY(c.s.send(pair.client, "x", 1, MSG_NOSIGNAL));
    SAY(c.s.recv(pair.client, c.buffer, 1, 0));
}

CASE(a_reset_within_send_is_told_by_recv) {
    const Pair pair = c.make_pair();
    send_into_a_reset(c, pair);
    SAY(c.s.recv(pair.client, c.buffer, 1, 0));
    SAY(c.s.recv(pair.client, c.buffer, 1, 0));
    SAY(c.s.send(pair.client, "x", 1, MSG_NOSIGNAL));
}

CASE(a_reset_while_send_of_one_byte_waits_is_told_by_it) {
    const Pair pair = c.make_pair();
    c.fill(pair.client);
    reset_when_asleep(c, pair.server);
    SAY(c.send_that_waits(pair.client, MSG_NOSIGNAL));
    c.join();
    SAY(c.s.send(pair.client, "x", 1, MSG_NOSIGNAL));
}

CASE(nothing_is_sent_after_a_reset_either) {
    const Pair pair = c.make_pair();
    reset(c, pair.client);
    c.await(pair.server, POLLERR);
    SAY(c.s.send(pair.server, "x", 0, MSG_NOSIGNAL));
    SAY(c.s.send(pair.server, "x", 0, MSG_NOSIGNAL));
    SAY(c.s.write(c.make_pair().client, "x", 0));
    SAY(c.s.send(c.make_socket(), "x", 0, MSG_NOSIGNAL));
}

CASE(nothing_is_received_after_a_reset_either) {
    const Pair pair = c.make_pair();
    reset(c, pair.client);
    c.await(pair.server, POLLERR);
    SAY(c.s.recv(pair.server, c.buffer, 0, 0));
    SAY(c.s.recv(pair.server, c.buffer, 0, 0));
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
}

CASE(getpeername_sees_a_reset_by_itself) {
    const Pair pair = c.make_pair();
    note_peer(c, pair.server);
    reset(c, pair.client);
    sockaddr_storage peer{};
    socklen_t length = sizeof(peer);
    await_by_trying(c, "the reset", [&] { return c.s.getpeername(pair.server, generic(peer), &length) != 0; });
    note_peer(c, pair.server);
    SAY(c.s.shutdown(pair.server, SHUT_WR));
    c.note_error(pair.server);
}

CASE(shutdown_sees_a_reset_by_itself) {
    const Pair pair = c.make_pair();
    reset(c, pair.client);
    await_by_trying(c, "the reset", [&] { return c.s.shutdown(pair.server, SHUT_WR) != 0; });
    SAY(c.s.shutdown(pair.server, SHUT_WR));
    SAY(c.s.shutdown(pair.server, SHUT_RDWR));
    c.note_error(pair.server);
}

CASE(tcp_info_sees_a_reset_by_itself) {
    const Pair pair = c.make_pair();
    reset(c, pair.client);
    await_by_trying(c, "the reset", [&] { return state_of(c, pair.server) != TCP_ESTABLISHED; });
    c.note(std::to_string(state_of(c, pair.server)));
    c.note_error(pair.server);
    c.note(std::to_string(state_of(c, pair.server)));
}

CASE(tcp_info_sees_the_peers_end_by_itself) {
    const Pair pair = c.make_pair();
    close_now(c, pair.client);
    await_by_trying(c, "the end", [&] { return state_of(c, pair.server) != TCP_ESTABLISHED; });
    c.note(std::to_string(state_of(c, pair.server)));
}

CASE(a_reset_connection_keeps_its_own_name) {
    const Pair pair = c.make_pair();
    const std::string before = text_of(c.address_of(pair.client), true);
    reset(c, pair.server);
    c.await(pair.client, POLLERR);
    c.note(text_of(c.address_of(pair.client), true) == before ? "the same" : "another");
    note_peer(c, pair.client);
}

CASE(close_with_unread_bytes_resets) {
    const Pair pair = c.make_pair();
    c.send_all(pair.server, "unread");
    c.await(pair.client, POLLIN);
    close_now(c, pair.client);
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
}

CASE(shutdown_of_a_reset_connection) {
    const Pair pair = c.make_pair();
    reset(c, pair.client);
    c.await(pair.server, POLLERR);
    SAY(c.s.shutdown(pair.server, SHUT_WR));
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
}

CASE(connect_of_a_reset_connection) {
    const Pair pair = c.make_pair();
    reset(c, pair.client);
    c.await(pair.server, POLLERR);
    const sockaddr_in to = loopback(closed_port());
    SAY(c.s.connect(pair.server, generic(to), sizeof(to)));
}

CASE(linger_with_time_waits_for_the_peer) {
    const Pair pair = c.make_pair();
    const linger some{1, 5};
    SAY(c.s.setsockopt(pair.client, SOL_SOCKET, SO_LINGER, &some, sizeof(some)));
    c.send_all(pair.client, "abc");
    close_now(c, pair.client);
    SAY(c.s.recv(pair.server, c.buffer, 3, MSG_WAITALL));
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
}

CASE(linger_with_time_waits_where_nothing_else_does) {
    const Pair pair = c.make_pair();
    const size_t total = c.fill(pair.client);
    const linger some{1, 1};
    SAY(c.s.setsockopt(pair.client, SOL_SOCKET, SO_LINGER, &some, sizeof(some)));
    SAY(c.s.fcntl(pair.client, F_SETFL, O_NONBLOCK));
    timespec before{};
    timespec after{};
    clock_gettime(CLOCK_MONOTONIC, &before);
    close_now(c, pair.client);
    clock_gettime(CLOCK_MONOTONIC, &after);
    const long long took = (after.tv_sec - before.tv_sec) * 1000LL + (after.tv_nsec - before.tv_nsec) / 1000000;
    c.note(took >= 900 ? "it waits" : "at once");
    c.drain(pair.server, total);
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
}

CASE(getpeername_while_the_peer_is_gone) {
    const Pair pair = c.make_pair();
    close_now(c, pair.client);
    c.await(pair.server, POLLRDHUP);
    note_peer(c, pair.server);
}

CASE(shutdown_of_a_listener) {
    const int listener = c.make_listener();
    SAY(c.s.shutdown(listener, SHUT_WR));
    c.note_poll("listens", listener, all_events);
    SAY(c.s.shutdown(listener, SHUT_RD));
    SAY(c.s.accept(listener, nullptr, nullptr));
    c.note_poll("listens no more", listener, all_events);
}

CASE(a_listener_that_was_shut_down_may_listen_again) {
    const int listener = c.make_listener();
    c.make_connected_to(listener); // which stays
    c.accept_from(listener);
    const sockaddr_storage before = c.address_of(listener);
    SAY(c.s.shutdown(listener, SHUT_RDWR));
    const sockaddr_storage between = c.address_of(listener);
    c.note(port_of(between) == port_of(before) ? "keeps its port" : "loses its port");
    SAY(c.s.listen(listener, 1));
    const sockaddr_storage after = c.address_of(listener);
    c.note(text_of(after) == text_of(before) ? "the same address"
                                             : "another"); // the kernel takes another port by itself
    c.make_connected_to(listener);
    c.accept_from(listener);
}

CASE(a_listener_that_is_given_up_keeps_its_port) {
    const int listener = c.make_socket();
    const sockaddr_in at = loopback(closed_port());
    SAY(c.s.bind(listener, generic(at), sizeof(at)));
    SAY(c.s.listen(listener, 1));
    sockaddr nowhere{};
    nowhere.sa_family = AF_UNSPEC;
    SAY(c.s.connect(listener, &nowhere, sizeof(nowhere)));
    c.note(port_of(c.address_of(listener)) == ntohs(at.sin_port) ? "keeps its port" : "loses its port");
    SAY(c.s.listen(listener, 1));
    c.note(port_of(c.address_of(listener)) == ntohs(at.sin_port) ? "keeps its port" : "loses its port");
    c.make_connected_to(listener);
    c.accept_from(listener);
}
