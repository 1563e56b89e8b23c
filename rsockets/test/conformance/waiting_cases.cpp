// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// poll and select.
#include "rsockets/test/conformance/conformance.hpp"

#include <algorithm>

#include <sys/eventfd.h>
#include <unistd.h>

using namespace conformance;

namespace {

constexpr short all_events = POLLIN | POLLPRI | POLLOUT | POLLRDNORM | POLLWRNORM | POLLRDHUP;

struct Pipe {
    explicit Pipe(Case& c) {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) != 0) {
            throw Failure("pipe");
        }
        out = ends[0];
        in = ends[1];
        (void)c;
    }
    Pipe(const Pipe&) = delete;
    Pipe& operator=(const Pipe&) = delete;
    ~Pipe() {
        ::close(out);
        ::close(in);
    }
    int out;
    int in;
};

// Which of two are in a set.
std::string members(const fd_set& set, int a, int b) {
    return std::string(FD_ISSET(a, &set) ? "first " : "") + (FD_ISSET(b, &set) ? "second" : "");
}

} // namespace

CASE(poll_of_a_fresh_socket) { c.note_poll("fresh", c.make_socket(), all_events); }
CASE(poll_of_an_idle_listener) { c.note_poll("idle", c.make_listener(), all_events); }

CASE(poll_of_a_bound_socket) {
    const int fd = c.make_socket();
    const sockaddr_in any = loopback(0);
    c.s.bind(fd, generic(any), sizeof(any));
    c.note_poll("bound", fd, all_events);
}

CASE(poll_of_a_listener_with_a_connection) {
    const int listener = c.make_listener();
    c.make_connected_to(listener);
    c.await(listener, POLLIN);
    c.note_poll("waiting", listener, all_events);
    c.accept_from(listener);
    c.note_poll("accepted", listener, all_events);
}

CASE(poll_of_an_idle_connection) {
    const Pair pair = c.make_pair();
    c.note_poll("client", pair.client, all_events);
    c.note_poll("server", pair.server, all_events);
    c.note_poll("for reading", pair.server, POLLIN);
    c.note_poll("for nothing", pair.server, 0);
}

CASE(poll_gives_only_what_was_asked_for) {
    const Pair pair = c.make_pair();
    c.send_all(pair.client, "x");
    c.await(pair.server, POLLIN);
    c.note_poll("all", pair.server, all_events);
    c.note_poll("IN", pair.server, POLLIN);
    c.note_poll("RDNORM", pair.server, POLLRDNORM);
    c.note_poll("OUT", pair.server, POLLOUT);
    c.note_poll("WRNORM", pair.server, POLLWRNORM);
    c.note_poll("PRI", pair.server, POLLPRI);
}

CASE(poll_of_a_full_connection) {
    const Pair pair = c.make_pair();
    c.fill(pair.client);
    c.note_poll("full", pair.client, all_events);
}

CASE(poll_waits_for_data) {
    const Pair pair = c.make_pair();
    c.run([&] { c.send_all(pair.client, "late"); });
    c.note_events("woken", static_cast<unsigned short>(c.await(pair.server, all_events & ~(POLLOUT | POLLWRNORM))));
}

CASE(poll_gives_up_in_time) {
    const Pair pair = c.make_pair();
    pollfd one{pair.server, POLLIN, -1};
    SAY(c.s.poll(&one, 1, 30));
    c.note_events("nothing", static_cast<unsigned short>(one.revents));
}

CASE(poll_of_nothing) {
    SAY(c.s.poll(nullptr, 0, 0));
    SAY(c.s.poll(nullptr, 0, 10));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) // which look at all that the call is said to get
CASE(poll_of_too_many) {
    pollfd one{c.make_socket(), POLLIN, 0};
    SAY(c.s.poll(&one, 1U << 30, 0));
}
#endif

CASE(poll_of_negative_and_closed_numbers) {
    const int closed = c.make_socket();
    c.forget(closed);
    c.s.close(closed);
    pollfd fds[] = {{-1, POLLIN, -1}, {closed, POLLIN, 0}, {c.make_socket(), POLLIN, 0}};
    SAY(c.s.poll(fds, 3, 0));
    for (const pollfd& one : fds) {
        c.note_events("events", static_cast<unsigned short>(one.revents));
    }
}

CASE(poll_of_one_socket_twice) {
    const Pair pair = c.make_pair();
    c.send_all(pair.client, "x");
    c.await(pair.server, POLLIN);
    pollfd fds[] = {{pair.server, POLLIN, 0}, {pair.server, POLLOUT, 0}};
    SAY(c.s.poll(fds, 2, -1));
    c.note_events("first", static_cast<unsigned short>(fds[0].revents));
    c.note_events("second", static_cast<unsigned short>(fds[1].revents));
}

CASE(poll_of_a_socket_and_a_pipe) {
    const Pair pair = c.make_pair();
    const Pipe pipe(c);
    pollfd fds[] = {{pair.server, POLLIN, 0}, {pipe.out, POLLIN, 0}};
    c.run([&] { (void)!::write(pipe.in, "x", 1); });
    SAY(c.s.poll(fds, 2, -1));
    c.note_events("socket", static_cast<unsigned short>(fds[0].revents));
    c.note_events("pipe", static_cast<unsigned short>(fds[1].revents));
    c.join();
    c.send_all(pair.client, "x");
    c.await(pair.server, POLLIN);
    SAY(c.s.poll(fds, 2, -1));
    c.note_events("socket", static_cast<unsigned short>(fds[0].revents));
}

CASE(poll_wakes_up_for_a_connection) {
    const int listener = c.make_listener();
    c.run([&] { c.make_connected_to(listener); });
    c.note_events("listener", static_cast<unsigned short>(c.await(listener, all_events)));
    c.join();
}

CASE(poll_wakes_up_for_the_end) {
    const Pair pair = c.make_pair();
    c.run([&] { c.s.shutdown(pair.client, SHUT_WR); });
    c.note_events("end", static_cast<unsigned short>(c.await(pair.server, POLLRDHUP)));
}

CASE(poll_wakes_up_for_ones_own_shutdown) {
    const Pair pair = c.make_pair();
    const int id = thread_id();
    c.run([&] {
        await_sleep(id);
        c.s.shutdown(pair.server, SHUT_RD);
    });
    c.note_events("shut", static_cast<unsigned short>(c.await(pair.server, POLLIN)));
}

CASE(poll_for_writing_does_not_wake_up_for_data) {
    const Pair pair = c.make_pair();
    c.fill(pair.server);
    c.send_all(pair.client, "x");
    c.await(pair.server, POLLIN);
    pollfd one{pair.server, POLLOUT, 0};
    SAY(c.s.poll(&one, 1, 50));
}

CASE(ppoll_with_a_time) {
    const Pair pair = c.make_pair();
    pollfd one{pair.server, POLLIN, 0};
    const timespec time{0, 20000000};
    SAY(c.s.ppoll(&one, 1, &time, nullptr));
    const timespec bad{0, 1000000000};
    SAY(c.s.ppoll(&one, 1, &bad, nullptr));
    const timespec negative{-1, 0};
    SAY(c.s.ppoll(&one, 1, &negative, nullptr));
    c.send_all(pair.client, "x");
    SAY(c.s.ppoll(&one, 1, nullptr, nullptr));
}

CASE(select_for_reading) {
    const Pair pair = c.make_pair();
    c.send_all(pair.client, "x");
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pair.client, &set);
    FD_SET(pair.server, &set);
    SAY(c.s.select(std::max(pair.client, pair.server) + 1, &set, nullptr, nullptr, nullptr));
    c.note(members(set, pair.client, pair.server));
}

CASE(select_for_writing) {
    const Pair pair = c.make_pair();
    c.fill(pair.client);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pair.client, &set);
    FD_SET(pair.server, &set);
    SAY(c.s.select(std::max(pair.client, pair.server) + 1, nullptr, &set, nullptr, nullptr));
    c.note(members(set, pair.client, pair.server));
}

CASE(select_counts_bits) {
    const Pair pair = c.make_pair();
    c.send_all(pair.client, "x");
    c.await(pair.server, POLLIN);
    fd_set in;
    FD_ZERO(&in);
    FD_SET(pair.server, &in);
    fd_set out = in;
    fd_set except = in;
    SAY(c.s.select(pair.server + 1, &in, &out, &except, nullptr));
    c.note(std::string(FD_ISSET(pair.server, &in) ? "in " : "") + (FD_ISSET(pair.server, &out) ? "out " : "") +
           (FD_ISSET(pair.server, &except) ? "except" : ""));
}

CASE(select_gives_up_in_time) {
    const Pair pair = c.make_pair();
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pair.server, &set);
    timeval time{0, 30000};
    SAY(c.s.select(pair.server + 1, &set, nullptr, nullptr, &time));
    c.note(members(set, pair.client, pair.server));
    c.note(std::to_string(time.tv_sec) + " " + std::to_string(time.tv_usec));
}

CASE(select_with_bad_arguments) {
    const int closed = c.make_socket();
    c.forget(closed);
    c.s.close(closed);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(closed, &set);
    SAY(c.s.select(closed + 1, &set, nullptr, nullptr, nullptr));
    SAY(c.s.select(-1, &set, nullptr, nullptr, nullptr));
    timeval negative{-1, 0};
    SAY(c.s.select(0, nullptr, nullptr, nullptr, &negative));
}

CASE(select_of_a_socket_and_an_eventfd) {
    const Pair pair = c.make_pair();
    const int event = eventfd(1, EFD_CLOEXEC);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pair.server, &set);
    FD_SET(event, &set);
    SAY(c.s.select(std::max(event, pair.server) + 1, &set, nullptr, nullptr, nullptr));
    c.note(members(set, pair.server, event));
    ::close(event);
}

CASE(select_sees_the_end) {
    const Pair pair = c.make_pair();
    c.forget(pair.client);
    c.s.close(pair.client);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pair.server, &set);
    SAY(c.s.select(pair.server + 1, &set, nullptr, nullptr, nullptr));
    c.note(members(set, pair.server, pair.client));
}

CASE(pselect_with_a_time) {
    const Pair pair = c.make_pair();
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pair.server, &set);
    const timespec time{0, 20000000};
    SAY(c.s.pselect(pair.server + 1, &set, nullptr, nullptr, &time, nullptr));
}
