// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Edges, and members of sets as servers use them, see epoll(7). A case asks for events when all has happened that
// brings them about: an edge that is to come is there by then, and none comes later.
#include "preload/test/calls/calls.hpp"
#include "rsockets/test/asleep.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <random>
#include <thread>
#include <vector>

#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/uio.h>

using namespace calls;

namespace {

constexpr uint32_t edge = EPOLLET;
constexpr uint32_t in_or_end = EPOLLIN | EPOLLRDHUP;
constexpr uint32_t all_edges = in_or_end | EPOLLOUT | edge; // as nginx, mio and Go have it
constexpr uint32_t shot = in_or_end | edge | EPOLLONESHOT;

Pair exchanged_pair() {
    alarm(60);
    const Pair one = pair();
    const int on = 1; // no short write waits for what is on its way
    MUST(setsockopt(one.client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
    exchange(one.client, one.server);
    return one;
}
int control(int set, int operation, int fd, uint32_t events = 0, uint64_t data = 1) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = data;
    return epoll_ctl(set, operation, fd, &event);
}
int add(int set, int fd, uint32_t events, uint64_t data = 1) { return control(set, EPOLL_CTL_ADD, fd, events, data); }
int set_of(int fd, uint32_t events) {
    const int set = epoll_create1(0);
    MUST(add(set, fd, events) == 0);
    return set;
}

// Waits, and says all events in the order of their data.
void say_events(const char* what, int set, int timeout = 10000, int most = 8) {
    std::vector<epoll_event> events(static_cast<size_t>(most));
    const int count = epoll_wait(set, events.data(), most, timeout);
    say("%s: epoll_wait = %d", what, count);
    events.resize(static_cast<size_t>(std::max(count, 0)));
    std::sort(events.begin(), events.end(), [](auto& a, auto& b) { return a.data.u64 < b.data.u64; });
    for (const epoll_event& event : events) {
        say("  %#x of %d", event.events, static_cast<int>(event.data.u64));
    }
}
void say_now(const char* what, int set) { say_events(what, set, 0); }
void say_twice(const char* what, int set) {
    say_events(what, set);
    say_now("  and again", set);
}
// A receive that waits for bytes, and leaves them, ends when the socket has told of them.
void put(int from, int to, size_t there) {
    std::vector<char> bytes(there);
    MUST(write(from, "x", 1) == 1 && recv(to, bytes.data(), there, MSG_PEEK | MSG_WAITALL) == ssize_t(there));
}
void put_and_say(const char* what, int set, int from, int to, size_t there = 1) {
    put(from, to, there);
    say_twice(what, set);
}
void take(int fd, size_t count) {
    std::vector<char> bytes(count);
    MUST(recv(fd, bytes.data(), count, MSG_WAITALL) == static_cast<ssize_t>(count));
}
void take_and_say(const char* what, int set, int fd, size_t count = 1) {
    take(fd, count);
    say_now(what, set);
}
void change_and_say(const char* what, int set, int fd, uint32_t events) {
    MUST(control(set, EPOLL_CTL_MOD, fd, events) == 0);
    say_now(what, set);
    say_now("  and again", set);
}
// poll may see an end before the socket has told of it; a receive does not.
void put_and_end(int from, int to) {
    MUST(write(from, "x", 1) == 1 && shutdown(from, SHUT_WR) == 0);
    pollfd end{to, POLLRDHUP, 0};
    char byte = 0;
    MUST(poll(&end, 1, 10000) == 1 && recv(to, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1);
}
// Writes until there is no space, and none comes while the peer does not read.
size_t fill(int fd) {
    const std::vector<char> block(65536);
    pollfd space{fd, POLLOUT, 0};
    size_t sent = 0;
    for (ssize_t n = 1; n > 0 || poll(&space, 1, 150) == 1;) {
        n = send(fd, block.data(), block.size(), MSG_DONTWAIT);
        sent += n > 0 ? static_cast<size_t>(n) : 0;
    }
    return sent;
}
// As nginx does: it waits whenever less was written than it gave, and each time is told of what is expected.
using Write = std::function<ssize_t(size_t from, size_t count)>;
void stream(const std::vector<char>& content, int to, int set, uint32_t expected, const Write& write) {
    std::vector<char> got(content.size());
    std::thread reader([&] { SAY(recv(to, got.data(), got.size(), MSG_WAITALL)); });
    for (size_t sent = 0; sent < content.size();) {
        const size_t count = std::min(size_t{1} << 20, content.size() - sent);
        const ssize_t n = write(sent, count);
        MUST(n > 0 || errno == EAGAIN);
        sent += n > 0 ? static_cast<size_t>(n) : 0;
        epoll_event event{};
        MUST(n == static_cast<ssize_t>(count) ||
             (epoll_wait(set, &event, 1, 20000) == 1 && (event.events & expected) == expected));
    }
    reader.join();
    SAY(got == content);
}
std::vector<char> random_bytes(size_t count) {
    std::vector<char> made(count);
    std::generate(made.begin(), made.end(), [next = std::minstd_rand()]() mutable { return char(next() >> 8); });
    return made;
}
void say_woken(const char* what, int set, const std::function<void()>& act) {
    std::thread other([&, sleeper = syscall(SYS_gettid)] {
        await_thread_asleep(sleeper);
        act();
    });
    say_events(what, set);
    other.join();
}

} // namespace

// The members are added when the connection is there, before it is upgraded, and never changed.
CALLS_CASE(edges_of_both_directions_and_bytes_that_were_left) {
    alarm(60);
    const int on = listener();
    const int client = connected_to(on);
    const int server = accept(on, nullptr, nullptr);
    const int set = set_of(server, all_edges);
    MUST(add(set, client, all_edges, 2) == 0);
    exchange(client, server);
    say_twice("after the exchanges", set);
    for (int round = 0; round < 5; ++round) {
        put_and_say("an arrival", set, client, server);
        put(client, server, 2);
        put_and_say("two arrivals", set, client, server, 3);
        take_and_say("read less than is there", set, server);
        put_and_say("one more", set, client, server, 3);
        take(server, 3);
        put_and_say("an answer", set, server, client);
        take_and_say("all was read", set, client);
    }
}

// Python's selectors pass an array of as many events as there are members, and take a member that comes twice for two.
CALLS_CASE(members_of_a_set_whose_array_was_full) {
    const Pair one = exchanged_pair();
    const int set = set_of(one.server, EPOLLIN);
    put(one.client, one.server, 1);
    say_events("one, by an array that it fills", set, 10000, 1);
    const int other = eventfd(1, EFD_CLOEXEC);
    MUST(add(set, other, EPOLLIN, 2) == 0);
    say_twice("both", set);
    say_events("both, by an array that they fill", set, 0, 2);
    say_twice("and again", set);
}

CALLS_CASE(short_writes_of_every_kind_and_an_edge) {
    std::vector<char> content = random_bytes(size_t{16} << 20);
    const int file = memfd_create("content", 0);
    MUST(write(file, content.data(), content.size()) == static_cast<ssize_t>(content.size()));
    for (const int kind : {1, 2, 3}) {
        const Pair one = exchanged_pair();
        MUST(fcntl(one.client, F_SETFL, O_NONBLOCK) == 0);
        stream(content, one.server, set_of(one.client, all_edges), EPOLLOUT, [&](size_t from, size_t count) {
            iovec parts[] = {{&content[from], count / 3}, {&content[from + count / 3], count - count / 3}};
            msghdr message{};
            message.msg_iov = parts;
            message.msg_iovlen = 2;
            off_t at = static_cast<off_t>(from);
            return kind == 1   ? writev(one.client, parts, 2)
                   : kind == 2 ? sendmsg(one.client, &message, MSG_NOSIGNAL)
                               : sendfile(one.client, file, &at, count);
        });
    }
}

CALLS_CASE(a_full_socket_hears_of_space_when_there_is_much) {
    for (const uint32_t how : {edge, 0U}) {
        const Pair one = exchanged_pair();
        const int set = set_of(one.client, EPOLLIN | EPOLLOUT | how);
        size_t sent = fill(one.client);
        say_now("full", set);
        take_and_say("a little was read", set, one.server, 1000);
        take(one.server, sent - 1000);
        say_twice("all was read", set);
        // As libuv and Java do: interest in space when there is none.
        change_and_say("nothing to write", set, one.client, EPOLLIN | how);
        sent = fill(one.client);
        change_and_say("full", set, one.client, EPOLLIN | EPOLLOUT | how);
        put_and_say("an arrival while it is full", set, one.server, one.client);
        take_and_say("still full", set, one.client);
        take(one.server, sent);
        say_twice("all was read", set);
    }
}

// A read of less than there was space for has taken all: what comes then has an edge of its own.
CALLS_CASE(a_short_read_and_an_edge) {
    const Pair one = exchanged_pair();
    const int set = set_of(one.server, all_edges);
    const auto size_of = [](size_t batch) { return 1 + batch * batch * 7919 % (batch % 2 == 0 ? 100 : 20000); };
    std::thread writer([&] {
        for (size_t batch = 0; batch < 200; ++batch) {
            const std::vector<char> bytes(size_of(batch));
            for (int i = 0; i < 8; ++i) {
                MUST(send(one.client, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
            }
            take(one.client, 1);
        }
    });
    bool drained = true;
    for (size_t batch = 0; batch < 200; ++batch) {
        for (size_t left = 8 * size_of(batch); left > 0;) {
            epoll_event event{};
            while (drained) {
                MUST(epoll_wait(set, &event, 1, 20000) == 1);
                drained = (event.events & EPOLLIN) == 0;
            }
            char buffer[4096];
            const ssize_t n = recv(one.server, buffer, sizeof(buffer), MSG_DONTWAIT);
            left -= n > 0 ? static_cast<size_t>(n) : 0;
            drained = n < static_cast<ssize_t>(sizeof(buffer));
        }
        MUST(write(one.server, "x", 1) == 1);
    }
    writer.join();
    say_echo(one.client, one.server);
}

CALLS_CASE(a_member_that_comes_late_or_changes) {
    const Pair one = exchanged_pair();
    put(one.client, one.server, 1);
    const int set = set_of(one.server, all_edges);
    say_twice("bytes were there", set);
    for (const uint32_t events : {all_edges, EPOLLIN | edge, EPOLLOUT | edge, EPOLLRDHUP | edge, edge, in_or_end}) {
        change_and_say("changed", set, one.server, events);
    }
    change_and_say("one shot", set, one.server, shot);
    put(one.client, one.server, 2);
    say_now("was shot", set);
    SAY(add(set, one.server, all_edges));
    change_and_say("armed again", set, one.server, shot);
    take(one.server, 2);
    change_and_say("nothing to read", set, one.server, shot);
    put_and_say("an arrival", set, one.client, one.server);
    put_and_end(one.client, one.server);
    say_now("was shot", set);
    change_and_say("bytes and the end", set, one.server, shot & ~edge);
    SAY(control(set, EPOLL_CTL_DEL, one.server));
    say_now("no member", set);
    say_twice("late", set_of(one.server, all_edges));
}

CALLS_CASE(the_peers_end_and_much_that_is_written_after_it) {
    const Pair one = exchanged_pair();
    const int set = set_of(one.server, all_edges);
    const int end = set_of(one.server, EPOLLRDHUP | edge); // as Envoy has it while it does not read
    const int level = set_of(one.server, EPOLLIN);
    put_and_say("bytes", set, one.client, one.server);
    say_now("no end", end);
    put_and_end(one.client, one.server);
    say_twice("bytes and the end", set);
    say_twice("the end", end);
    take(one.server, 2);
    say_twice("by level", level);
    const std::vector<char> content = random_bytes(size_t{8} << 20);
    stream(content, one.client, set, in_or_end, // the end is there still, whatever else is
           [&](size_t from, size_t count) { return send(one.server, &content[from], count, MSG_DONTWAIT); });
    char byte = 0;
    SAY(shutdown(one.server, SHUT_WR));
    SAY(recv(one.client, &byte, 1, 0));
    say_poll("both ends", one.client, POLLIN | POLLOUT | POLLRDHUP);
}

CALLS_CASE(an_end_of_our_own) {
    const Pair one = exchanged_pair();
    const int set = set_of(one.server, all_edges);
    say_twice("space", set);
    char byte = 0;
    SAY(shutdown(one.server, SHUT_WR));
    say_events("nothing waits for space", set);
    SAY(recv(one.client, &byte, 1, 0));
    put_and_say("bytes", set, one.client, one.server);
    SAY(send(one.server, "x", 1, MSG_NOSIGNAL));
    put_and_end(one.client, one.server);
    say_twice("both ends", set);
    const Pair other = exchanged_pair();
    say_woken("by another thread", set_of(other.server, in_or_end | edge), [&] { shutdown(other.server, SHUT_RDWR); });
    SAY(recv(other.client, &byte, 1, 0));
}

CALLS_CASE(a_reset_wakes_who_waits_for_space) {
    for (const uint32_t events : {all_edges, all_edges & ~edge}) {
        const Pair one = exchanged_pair();
        const int set = set_of(one.client, events);
        MUST(fill(one.client) > 0); // what is not read makes the close a reset
        say_now("full", set);
        say_woken("reset", set, [&] { close(one.server); });
        say_events("late", set_of(one.client, all_edges));
        SAY(send(one.client, "x", 1, MSG_NOSIGNAL));
        SAY(send(one.client, "x", 1, MSG_NOSIGNAL));
        char byte = 0;
        SAY(recv(one.client, &byte, 1, 0));
        say_events("no error is left", set_of(one.client, all_edges));
    }
}

CALLS_CASE(several_sets_and_a_copy_of_one_socket) {
    const Pair one = exchanged_pair();
    const int level = set_of(one.server, EPOLLIN);
    const int edges = set_of(one.server, EPOLLIN | edge);
    const int exclusive = set_of(one.server, EPOLLIN | EPOLLEXCLUSIVE | edge); // the only one that is
    SAY(control(exclusive, EPOLL_CTL_MOD, one.server, EPOLLIN));
    SAY(add(level, one.client, EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT));
    SAY(add(level, one.client, EPOLLIN | EPOLLEXCLUSIVE | EPOLLRDHUP));
    put_and_say("by level", level, one.client, one.server);
    say_twice("by edge", edges);
    say_twice("exclusive", exclusive);
    // A member is a number and what it was opened for, and lasts as long as that.
    const int copy = dup(one.server);
    SAY(add(edges, copy, EPOLLIN | EPOLLOUT | edge, 2));
    SAY(add(edges, copy, EPOLLIN | edge, 3));
    say_twice("a copy", edges);
    put_and_say("an arrival", edges, one.client, one.server, 2);
    close(copy);
    put_and_say("an arrival after a close", edges, one.client, one.server, 3);
    SAY(control(edges, EPOLL_CTL_DEL, copy));
    take_and_say("all was read", level, one.server, 3);
    close(one.server);
    say_poll("closed", one.client, POLLIN);
    say_now("no member", edges);
}

// epoll_wait(2): successive calls go round what is ready. By edge, with something else than sockets.
CALLS_CASE(one_event_at_a_time) {
    const std::array<Pair, 3> pairs{exchanged_pair(), exchanged_pair(), exchanged_pair()};
    const std::array<int, 4> fds{pairs[0].server, pairs[1].server, pairs[2].server, eventfd(1, 0)};
    const int set = epoll_create1(0);
    for (const Pair& one : pairs) {
        put(one.client, one.server, 1);
    }
    for (const uint32_t how : {0U, edge}) {
        for (size_t i = 0; i < (how == 0 ? pairs.size() : fds.size()); ++i) {
            MUST(control(set, how == 0 || i == 3 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fds[i], EPOLLIN | how, i) == 0);
        }
        std::array<int, 4> counts{};
        for (int calls = how == 0 ? 30 : 4; calls > 0; --calls) {
            epoll_event event{};
            MUST(epoll_wait(set, &event, 1, 10000) == 1);
            ++counts.at(event.data.u64);
        }
        say("%d %d %d %d", counts[0], counts[1], counts[2], counts[3]);
    }
    say_now("told already", set);
}

CALLS_CASE(two_threads_wait_in_one_set) {
    const std::array<Pair, 3> pairs{exchanged_pair(), exchanged_pair(), exchanged_pair()};
    const int end = eventfd(0, 0);
    const int set = epoll_create1(0);
    MUST(add(set, end, EPOLLIN, pairs.size()) == 0);
    for (size_t i = 0; i < pairs.size(); ++i) {
        MUST(add(set, pairs[i].server, shot, i) == 0);
    }
    std::array<std::atomic<bool>, 3> taken{};
    const auto echo = [&] {
        for (epoll_event event{}; epoll_wait(set, &event, 1, 20000) == 1 && event.data.u64 < pairs.size();) {
            const int fd = pairs[event.data.u64].server;
            MUST(!taken[event.data.u64].exchange(true));
            char text[64];
            const ssize_t n = recv(fd, text, sizeof(text), MSG_DONTWAIT);
            MUST(n > 0 && write(fd, text, static_cast<size_t>(n)) == n);
            taken[event.data.u64] = false;
            MUST(control(set, EPOLL_CTL_MOD, fd, shot, event.data.u64) == 0);
        }
    };
    std::thread first(echo);
    std::thread second(echo);
    for (int round = 0; round < 300; ++round) {
        for (const Pair& one : pairs) {
            MUST(write(one.client, "0123456789", 10) == 10);
        }
        for (const Pair& one : pairs) {
            take(one.client, 10);
        }
    }
    MUST(eventfd_write(end, 1) == 0);
    first.join();
    second.join();
    say_echo(pairs[0].client, pairs[0].server);
}
