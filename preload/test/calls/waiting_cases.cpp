// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Waiting for sockets, pipes and sets together; connects that fail.
#include "preload/test/calls/calls.hpp"
#include "rsockets/test/asleep.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

#include <arpa/inet.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/syscall.h>

using namespace calls;

namespace {

epoll_event asking(uint32_t events, uint64_t data) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = data;
    return event;
}

// Waits, and says all events in the order of their data.
void say_events(const char* what, int set, int timeout = 10000) {
    std::array<epoll_event, 16> events{};
    const int count = epoll_wait(set, events.data(), events.size(), timeout);
    say("%s: epoll_wait = %d", what, count);
    for (uint64_t data = 0; data < 16; ++data) {
        for (int i = 0; i < count; ++i) {
            if (events[static_cast<size_t>(i)].data.u64 == data) {
                say("  %#x of %d", events[static_cast<size_t>(i)].events, static_cast<int>(data));
            }
        }
    }
}

// The pipe is empty before the call and after it, and has a byte in it once the call sleeps.
template <class Call> void write_once_asleep(const int (&pipe)[2], Call&& call) {
    std::thread writer([&, sleeper = syscall(SYS_gettid)] {
        await_thread_asleep(sleeper);
        MUST(write(pipe[1], "x", 1) == 1);
    });
    call();
    writer.join();
    char byte = 0;
    MUST(read(pipe[0], &byte, 1) == 1);
}

} // namespace

CALLS_CASE(a_mix_in_poll_and_select) {
    const Pair one = pair();
    int ends[2];
    MUST(pipe(ends) == 0);
    const int file = open("/dev/null", O_RDWR);
    pollfd fds[] = {
        {one.server, POLLIN, 0}, {ends[0], POLLIN, 0}, {file, POLLOUT, 0}, {-1, POLLIN, 0}, {900, POLLIN, 0}};
    SAY(poll(fds, 5, 0));
    for (const pollfd& fd : fds) {
        say("  %#x", static_cast<unsigned>(fd.revents));
    }
    MUST(write(ends[1], "x", 1) == 1 && write(one.client, "x", 1) == 1);
    fds[2].fd = -1;
    fds[4].fd = -1;
    const timespec ten{10, 0};
    MUST(ppoll(fds, 1, &ten, nullptr) == 1);
    SAY(ppoll(fds, 5, &ten, nullptr));
    say("  %#x %#x", static_cast<unsigned>(fds[0].revents), static_cast<unsigned>(fds[1].revents));
    fd_set in;
    fd_set out;
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_SET(one.server, &in);
    FD_SET(ends[0], &in);
    FD_SET(one.client, &out);
    timeval time{10, 0};
    SAY(select(100, &in, &out, nullptr, &time));
    say("%d %d %d %d", FD_ISSET(one.server, &in) != 0, FD_ISSET(ends[0], &in) != 0, FD_ISSET(one.client, &out) != 0,
        time.tv_sec > 0 || time.tv_usec > 0);
    // The kernel looks at no number that its table of descriptors has no space for yet: there is space for this one.
    MUST(dup2(file, 99) == 99 && close(99) == 0);
    FD_SET(99, &in);
    SAY(pselect(100, &in, nullptr, nullptr, &ten, nullptr));
    char byte = 0;
    MUST(read(one.server, &byte, 1) == 1);
    FD_ZERO(&in);
    FD_SET(one.server, &in);
    time = {0, 20000};
    SAY(select(one.server + 1, &in, nullptr, nullptr, &time));
    say("%ld %ld %d", time.tv_sec, time.tv_usec, FD_ISSET(one.server, &in) != 0);
}

CALLS_CASE(a_mix_in_epoll) {
    const int set = epoll_create1(EPOLL_CLOEXEC);
    int ends[2];
    MUST(pipe(ends) == 0);
    epoll_event event = asking(EPOLLIN, 1);
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event));
    const Pair one = pair();
    event = asking(EPOLLIN | EPOLLRDHUP, 2);
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, one.server, &event));
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, one.server, &event));
    event = asking(EPOLLIN | EPOLLOUT | EPOLLET, 3);
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, one.client, &event));
    SAY(fcntl(set, F_GETFD));
    say_events("an edge", set);
    say_events("no edge", set, 0);
    MUST(write(ends[1], "x", 1) == 1 && write(one.client, "x", 1) == 1);
    pollfd ready{one.server, POLLIN, 0};
    MUST(poll(&ready, 1, 10000) == 1);
    say_events("both", set);
    say_events("both again", set);
    event = asking(EPOLLIN | EPOLLONESHOT, 4);
    SAY(epoll_ctl(set, EPOLL_CTL_MOD, one.server, &event));
    SAY(epoll_ctl(set, EPOLL_CTL_DEL, ends[0], nullptr));
    say_events("one shot", set);
    say_events("was shot", set, 0);
    SAY(epoll_ctl(set, EPOLL_CTL_DEL, ends[0], nullptr));
    SAY(epoll_ctl(set, EPOLL_CTL_MOD, one.server, &event));
    const timespec ten{10, 0};
    epoll_event out{};
    SAY(epoll_pwait2(set, &out, 1, &ten, nullptr));
    SAY(epoll_pwait(set, &out, 1, 0, nullptr));
    SAY(epoll_wait(set, &out, 0, 0));
    event = asking(EPOLLIN, 5);
    SAY(epoll_ctl(set, EPOLL_CTL_MOD, one.server, &event));
    close(one.server);
    pollfd end{one.client, POLLIN, 0};
    MUST(poll(&end, 1, 10000) == 1);
    say_events("without the one that was closed", set);
    close(one.client);
    say_events("empty", set, 0);
}

CALLS_CASE(sets_that_were_filled_before_connecting) {
    const int set = epoll_create(1);
    const int outer = epoll_create1(0);
    epoll_event event = asking(EPOLLIN, 7);
    MUST(epoll_ctl(outer, EPOLL_CTL_ADD, set, &event) == 0);
    const int on = socket(AF_INET, SOCK_STREAM, 0);
    event = asking(EPOLLIN, 1);
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, on, &event));
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    MUST(bind(on, generic(any), sizeof(any)) == 0 && listen(on, 5) == 0);
    say_events("nothing", set, 0);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    event = asking(EPOLLOUT | EPOLLRDHUP, 2);
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    sockaddr_in to = address_of(on);
    MUST(connect(fd, generic(to), sizeof(to)) == 0 || errno == EINPROGRESS);
    say_poll("connected", fd, POLLOUT);
    say_poll("requested", on, POLLIN);
    say_events("both", set);
    say_poll("a set in poll", set, POLLIN);
    say_events("nested", outer);
    const int server = accept(on, nullptr, nullptr);
    event = asking(EPOLLRDHUP | EPOLLIN, 3);
    SAY(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
    say_events("quiet", set, 0);
    say_events("quiet nested", outer, 0);
    MUST(write(server, "x", 1) == 1);
    say_events("nested bytes", outer);
    say_events("bytes", set);
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, set, &event));
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, outer, &event));
}

// As nginx does it: the set has the socket first. Then it reads what it was told of, and not until EAGAIN.
CALLS_CASE(an_edge_for_each_arrival_on_a_socket_that_was_added_before_connecting) {
    const int set = epoll_create1(0);
    const int on = listener();
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    epoll_event event = asking(EPOLLIN | EPOLLRDHUP | EPOLLET, 1);
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    sockaddr_in to = address_of(on);
    MUST(connect(fd, generic(to), sizeof(to)) == 0);
    const int server = accept(on, nullptr, nullptr);
    exchange(fd, server);
    MUST(epoll_wait(set, &event, 1, 0) >= 0); // of the exchanges
    char buffer[16];
    for (int round = 0; round < 20; ++round) {
        MUST(write(server, "abcd", 4) == 4);
        say_events("an arrival", set);
        MUST(recv(fd, buffer, 4, 0) == 4);
        MUST(write(server, "efgh", 4) == 4);
        say_events("another one", set);
        MUST(write(server, "ijkl", 4) == 4);
        say_events("and one behind unread bytes", set);
        MUST(recv(fd, buffer, sizeof(buffer), 0) == 8);
        say_events("nothing", set, 0);
        MUST(write(fd, "back", 4) == 4 && recv(server, buffer, 4, MSG_WAITALL) == 4);
    }
    SAY(epoll_ctl(set, EPOLL_CTL_DEL, fd, nullptr));
    MUST(write(server, "x", 1) == 1);
    say_events("no member", set, 0);
}

// One thread serves what it was told of, while the library begins to move the bytes itself.
CALLS_CASE(a_member_with_one_shot_is_not_told_of_twice) {
    const int on = listener();
    const int client = connected_to(on);
    const Pair one{on, client, accept(on, nullptr, nullptr)};
    const int set = epoll_create1(0);
    epoll_event event = asking(EPOLLIN | EPOLLONESHOT, 1);
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, one.server, &event) == 0);
    MUST(write(one.client, "x", 1) == 1);
    say_events("the shot", set);
    char byte = 0;
    MUST(read(one.server, &byte, 1) == 1);
    exchange(one.client, one.server);
    MUST(write(one.client, "y", 1) == 1);
    say_poll("more", one.server, POLLIN);
    say_events("no second one", set, 200);
    MUST(epoll_ctl(set, EPOLL_CTL_MOD, one.server, &event) == 0);
    say_events("it is armed again", set);
    close(set);
    close_all(one);
}

// A program that looks at all of its sockets after each event needs no data.
CALLS_CASE(an_event_of_two_members_with_equal_data_is_not_lost) {
    const Pair upgraded = pair();
    const int on = listener();
    const int client = connected_to(on);
    const Pair fresh{on, client, accept(on, nullptr, nullptr)};
    const int set = epoll_create1(0);
    epoll_event event = asking(EPOLLIN, 1);
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, upgraded.server, &event) == 0);
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fresh.server, &event) == 0);
    MUST(syscall(SYS_write, fresh.client, "x", 1) == 1);
    say_events("of the fresh one", set, 2000);
    close(set);
    close_all(upgraded);
    close_all(fresh);
}

CALLS_CASE(a_number_that_was_reused_before_connecting_is_no_member) {
    const int set = epoll_create1(0);
    const int on = listener();
    const int first = socket(AF_INET, SOCK_STREAM, 0);
    epoll_event event = asking(EPOLLIN | EPOLLET, 1);
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, first, &event) == 0);
    close(first);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    MUST(fd == first);
    sockaddr_in to = address_of(on);
    MUST(connect(fd, generic(to), sizeof(to)) == 0);
    const int server = accept(on, nullptr, nullptr);
    exchange(fd, server);
    MUST(write(server, "x", 1) == 1);
    say_poll("bytes", fd, POLLIN);
    say_events("no member", set, 0);
    SAY(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    say_events("a member", set);
}

CALLS_CASE(a_socket_that_was_duplicated_before_connecting) {
    const int set = epoll_create1(0);
    const int on = listener();
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    const int copy = dup(fd);
    const int third = fcntl(copy, F_DUPFD_CLOEXEC, 100);
    epoll_event event = asking(EPOLLIN, 3);
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, third, &event) == 0);
    sockaddr_in to = address_of(on);
    MUST(connect(fd, generic(to), sizeof(to)) == 0);
    const int server = accept(on, nullptr, nullptr);
    exchange(fd, server);
    say_events("nothing", set, 0);
    say_echo(copy, server);
    say_echo(third, server);
    MUST(write(server, "x", 1) == 1);
    say_events("by its third number", set);
    SAY(close(fd));
    say_events("by its third number", set);
    char byte = 0;
    SAY(recv(copy, &byte, 1, 0));
    say_echo(copy, server);
    close(copy);
    say_echo(third, server);
    close(third);
    SAY(recv(server, &byte, 1, 0));
}

CALLS_CASE(a_thread_that_waits_in_a_set_that_grows) {
    const int set = epoll_create1(0);
    const int other = eventfd(0, 0);
    epoll_event event = asking(EPOLLIN, 1);
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, other, &event) == 0);
    std::thread waiter([&] { say_events("woken", set, 20000); });
    usleep(100000); // it is to be asleep, and nothing depends on that
    const Pair one = pair();
    event = asking(EPOLLIN, 2);
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, one.server, &event) == 0);
    MUST(write(one.client, "x", 1) == 1);
    waiter.join();
    const uint64_t count = 1;
    MUST(write(other, &count, sizeof(count)) == sizeof(count));
    say_events("both", set);
}

// Limits that end later than any clock can tell are none.
CALLS_CASE(the_longest_time_limits) {
    const Pair one = pair();
    int ends[2];
    MUST(pipe(ends) == 0);
    const int set = epoll_create1(0);
    epoll_event event = asking(EPOLLIN, 1);
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, one.server, &event) == 0);
    event = asking(EPOLLIN, 2);
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event) == 0);
    fd_set in;
    const int count = std::max(one.server, ends[0]) + 1;
    const auto ask = [&] {
        FD_ZERO(&in);
        FD_SET(one.server, &in);
        FD_SET(ends[0], &in);
    };
    for (const long microseconds : {0L, 999999L, 1000000L}) {
        timeval time{LONG_MAX, microseconds};
        ask();
        write_once_asleep(ends, [&] { SAY(select(count, &in, nullptr, nullptr, &time)); });
        say("  %d %d %d", FD_ISSET(one.server, &in) != 0, FD_ISSET(ends[0], &in) != 0, time.tv_sec > 1000000);
    }
    for (const timespec limit : {timespec{LONG_MAX, 0}, timespec{LONG_MAX, 999999999}, timespec{LONG_MAX / 1000, 0}}) {
        ask();
        write_once_asleep(ends, [&] { SAY(pselect(count, &in, nullptr, nullptr, &limit, nullptr)); });
        pollfd fds[] = {{one.server, POLLIN, 0}, {ends[0], POLLIN, 0}};
        write_once_asleep(ends, [&] { SAY(ppoll(fds, 2, &limit, nullptr)); });
        epoll_event out{};
        write_once_asleep(ends, [&] { SAY(epoll_pwait2(set, &out, 1, &limit, nullptr)); });
    }
}

CALLS_CASE(refusals) {
    signal(SIGPIPE, SIG_IGN);
    sockaddr_in to = closed_port();
    SAY(connect(socket(AF_INET, SOCK_STREAM, 0), generic(to), sizeof(to)));
    const int by_poll = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    const int by_epoll = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    const int by_select = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    const int set = epoll_create1(0);
    epoll_event event = asking(EPOLLOUT, 3);
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, by_epoll, &event) == 0);
    for (const int fd : {by_poll, by_epoll, by_select}) {
        MUST(connect(fd, generic(to), sizeof(to)) < 0 && (errno == EINPROGRESS || errno == ECONNREFUSED));
    }
    say_poll("refused", by_poll, POLLOUT);
    say_events("refused", set);
    fd_set out;
    FD_ZERO(&out);
    FD_SET(by_select, &out);
    SAY(select(by_select + 1, nullptr, &out, nullptr, nullptr));
    for (const int fd : {by_poll, by_epoll, by_select}) {
        int error = 0;
        socklen_t length = sizeof(error);
        MUST(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0);
        SAY(error == ECONNREFUSED);
        SAY(write(fd, "x", 1) < 0);
    }
    sockaddr_in nowhere = to;
    inet_aton("255.255.255.255", &nowhere.sin_addr);
    SAY(connect(socket(AF_INET, SOCK_STREAM, 0), generic(nowhere), sizeof(nowhere)));
}

CALLS_CASE(a_refused_socket_may_try_again) {
    sockaddr_in refused = closed_port();
    const int on = listener();
    sockaddr_in to = address_of(on);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    int one = 1;
    MUST(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one)) == 0);
    SAY(connect(fd, generic(refused), sizeof(refused)));
    SAY(connect(fd, generic(to), sizeof(to)));
    const int server = accept(on, nullptr, nullptr);
    say_echo(fd, server);
    int got = 0;
    socklen_t length = sizeof(got);
    SAY(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &got, &length));
    say("%d", got);
}

CALLS_CASE(bound_before_connecting) {
    const int on = listener();
    sockaddr_in to = address_of(on);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in from = closed_port();
    MUST(bind(fd, generic(from), sizeof(from)) == 0);
    SAY(connect(fd, generic(to), sizeof(to)));
    sockaddr_in peer{};
    socklen_t length = sizeof(peer);
    const int server = accept(on, generic(peer), &length);
    SAY(peer.sin_port == from.sin_port && address_of(fd).sin_port == from.sin_port);
    say_echo(fd, server);
    const int second = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in taken = to;
    SAY(bind(second, generic(taken), sizeof(taken)));
}

CALLS_CASE(listeners_that_share_a_port) {
    int on = 1;
    const int first = socket(AF_INET, SOCK_STREAM, 0);
    const int second = socket(AF_INET, SOCK_STREAM, 0);
    for (const int fd : {first, second}) {
        MUST(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on)) == 0);
    }
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    SAY(bind(first, generic(name), sizeof(name)));
    name = address_of(first);
    SAY(bind(second, generic(name), sizeof(name)));
    SAY(listen(first, 5));
    SAY(listen(second, 5));
    const int client = connected_to(first);
    pollfd fds[] = {{first, POLLIN, 0}, {second, POLLIN, 0}};
    SAY(poll(fds, 2, 10000));
    const int server = accept(fds[0].revents != 0 ? first : second, nullptr, nullptr);
    say_echo(client, server);
}
