// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What a socket or a thread had before must not reach what it has now: a connect that was given up, the size that a
// buffer will have next time, what a child inherits, time limits that do not end.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include <fcntl.h>
#include <rdma/rsocket.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/descriptor.hpp"
#include "fabtests/common/child.hpp"
#include "rsockets/test/asleep.hpp"
#include "rsockets/test/fork.hpp"
#include "rsockets/test/sockets.hpp"

namespace {

using namespace fabtests;
using namespace rsocket_test;

int option(int fd, int name) {
    int value = -1;
    socklen_t length = sizeof(value);
    EXPECT_EQ(rgetsockopt(fd, SOL_SOCKET, name, &value, &length), 0);
    return value;
}

void set(int fd, int name, int value) { EXPECT_EQ(rsetsockopt(fd, SOL_SOCKET, name, &value, sizeof(value)), 0); }

// ---- a connect that was given up

Number calling_socket() {
    Number fd(rsocket(AF_INET, SOCK_STREAM, 0));
    EXPECT_EQ(rfcntl(fd, F_SETFL, O_NONBLOCK), 0);
    return fd;
}

int begin_to_connect(int fd, uint16_t port) {
    const sockaddr_in to = loopback(port);
    return rconnect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0 ? 0 : errno;
}

void give_up(int fd) {
    sockaddr nowhere{};
    nowhere.sa_family = AF_UNSPEC;
    EXPECT_EQ(rconnect(fd, &nowhere, sizeof(nowhere)), 0);
}

uint16_t closed_port() {
    const Number fd(rsocket(AF_INET, SOCK_STREAM, 0));
    const sockaddr_in any = loopback(0);
    EXPECT_EQ(rbind(fd, reinterpret_cast<const sockaddr*>(&any), sizeof(any)), 0);
    return port_of(fd);
}

// The connect that is under way ends in this; 0 if well.
int outcome(int fd) {
    pollfd one{fd, POLLOUT, 0};
    EXPECT_EQ(rpoll(&one, 1, patience(20000)), 1);
    return option(fd, SO_ERROR);
}

// In which one could be told what is not so.
constexpr std::chrono::milliseconds moment{200};

bool undecided(int fd) {
    pollfd one{fd, POLLOUT, 0};
    return rpoll(&one, 1, static_cast<int>(moment.count())) == 0;
}

// Accepts all the time: a peer whose answer comes when it is let go on.
void role_accepts(const std::vector<std::string>&) {
    const Number from = listener();
    say(std::to_string(port_of(from)));
    std::vector<Number> accepted;
    for (;;) {
        accepted.emplace_back(raccept(from, nullptr, nullptr));
        char byte = 0;
        if (rrecv(accepted.back(), &byte, 1, 0) == 1) {
            EXPECT_EQ(rsend(accepted.back(), &byte, 1, 0), 1);
        }
    }
}

// Accepts one connection, and says how its receive ends.
void role_accepts_one(const std::vector<std::string>&) {
    const Number from = listener();
    say(std::to_string(port_of(from)));
    const Number accepted(raccept(from, nullptr, nullptr));
    char byte = 0;
    const ssize_t received = rrecv(accepted, &byte, 1, 0);
    say(received < 0 ? strerror(errno) : std::to_string(received));
}

struct Peer {
    explicit Peer(const char* role = "accepts") : child(role), port(static_cast<uint16_t>(std::stoi(child.hear()))) {}

    Child child;
    uint16_t port;
};

void expect_echo(int fd) {
    EXPECT_EQ(rfcntl(fd, F_SETFL, 0), 0);
    send_all(fd, "x");
    EXPECT_EQ(received(fd, 1), "x");
}

// A socket that was never connected, or one that was.
Number socket_that_was(bool connected_before) {
    Number fd = calling_socket();
    if (connected_before) {
        const Number from = listener();
        (void)begin_to_connect(fd, port_of(from));
        const Number server(raccept(from, nullptr, nullptr));
        EXPECT_EQ(outcome(fd), 0);
        give_up(fd);
    }
    return fd;
}

// While nobody answers the second connect, the first one's peer does.
void test_a_late_answer_to_a_connect_that_was_given_up_is_not_the_next_ones() {
    for (const bool connected_before : {false, true}) {
        Peer late;
        Peer silent;
        const Number fd = socket_that_was(connected_before);
        late.child.stop();
        silent.child.stop();
        EXPECT_EQ(begin_to_connect(fd, late.port), EINPROGRESS);
        give_up(fd);
        EXPECT_EQ(begin_to_connect(fd, silent.port), EINPROGRESS);
        late.child.interrupt(SIGCONT);
        (void)connected_to(late.port); // it answers in the order in which it was asked
        EXPECT(undecided(fd));
        silent.child.interrupt(SIGCONT);
        EXPECT_EQ(outcome(fd), 0);
        expect_echo(fd);
    }
}

void test_a_late_refusal_is_not_taken_for_the_next_connects() {
    for (const bool connected_before : {false, true}) {
        Peer late;
        Peer silent;
        const Number fd = socket_that_was(connected_before);
        late.child.stop();
        silent.child.stop();
        EXPECT_EQ(begin_to_connect(fd, late.port), EINPROGRESS);
        give_up(fd);
        EXPECT_EQ(begin_to_connect(fd, silent.port), EINPROGRESS);
        late.child.kill();
        EXPECT(undecided(fd));
        silent.child.interrupt(SIGCONT);
        EXPECT_EQ(outcome(fd), 0);
        expect_echo(fd);
    }
}

// TCP answers the peer that accepts after all with a reset; the socket stays, and is not used.
void test_a_connect_that_was_given_up_is_a_reset_to_its_peer() {
    for (const bool by_shutdown : {false, true}) {
        Peer late("accepts_one");
        const Number fd = calling_socket();
        late.child.stop();
        EXPECT_EQ(begin_to_connect(fd, late.port), EINPROGRESS);
        if (by_shutdown) {
            EXPECT_EQ(rshutdown(fd, SHUT_RDWR), 0);
        } else {
            give_up(fd);
        }
        late.child.interrupt(SIGCONT);
        EXPECT_EQ(late.child.hear(), std::string(strerror(ECONNRESET)));
        late.child.finish();
    }
}

// The call stays within the beginning of the second connect: nothing of the first one may outlast that.
void test_a_connect_that_waits_is_not_ended_by_one_that_was_given_up() {
    for (const bool answered : {false, true}) {
        Peer late;
        Peer silent;
        const Number fd = calling_socket();
        late.child.stop();
        silent.child.stop();
        EXPECT_EQ(begin_to_connect(fd, late.port), EINPROGRESS);
        give_up(fd);
        EXPECT_EQ(rfcntl(fd, F_SETFL, 0), 0);
        std::promise<int> result;
        auto error = result.get_future();
        Threads threads;
        (void)start_asleep(threads, [&] { result.set_value(begin_to_connect(fd, silent.port)); });
        if (answered) {
            late.child.interrupt(SIGCONT);
            (void)connected_to(late.port);
        } else {
            late.child.kill();
        }
        const bool still_waits = error.wait_for(moment) == std::future_status::timeout;
        silent.child.interrupt(SIGCONT);
        threads.join();
        EXPECT(still_waits);
        EXPECT_EQ(error.get(), 0);
        expect_echo(fd);
    }
}

// The first one's outcome may come at any moment: before it is given up, in between, and while the next one begins.
void test_connects_that_are_given_up_at_any_moment_leave_the_next_one_alone() {
    const Number from = listener();
    const uint16_t open = port_of(from);
    const uint16_t closed = closed_port();
    for (int i = 0; i < 100; ++i) {
        const auto wait = [i] {
            const auto until = Clock::now() + std::chrono::microseconds((i % 50) * 20);
            while (Clock::now() < until) {
            }
        };
        const Number refused = calling_socket();
        EXPECT_EQ(begin_to_connect(refused, open), EINPROGRESS);
        wait();
        give_up(refused);
        if (const int error = begin_to_connect(refused, closed); error == EINPROGRESS) {
            EXPECT_EQ(outcome(refused), ECONNREFUSED);
        } else {
            EXPECT_EQ(error, ECONNREFUSED);
        }
        const Number taken = calling_socket();
        const int error = begin_to_connect(taken, closed);
        EXPECT(error == EINPROGRESS || error == ECONNREFUSED);
        wait();
        give_up(taken);
        EXPECT_EQ(begin_to_connect(taken, open), EINPROGRESS);
        EXPECT_EQ(outcome(taken), 0);
        EXPECT_EQ(option(taken, SO_ERROR), 0);
    }
}

// Calls of several threads: each comes to an end, and the socket is as good as before.
void test_threads_that_connect_and_give_up_the_same_socket_leave_it_whole() {
    Peer peer;
    const uint16_t closed = closed_port();
    const Number fd(rsocket(AF_INET, SOCK_STREAM, 0));
    std::atomic<int> busy{2};
    Threads threads;
    for (const uint16_t port : {peer.port, closed}) {
        threads.start([&, port] {
            for (int i = 0; i < 200; ++i) {
                const int error = begin_to_connect(fd, port);
                EXPECT(error == 0 || error == EISCONN || error == ECONNREFUSED || error == ECONNABORTED ||
                       error == ECONNRESET);
            }
            --busy;
        });
    }
    threads.start([&] {
        for (int i = 0; busy.load() != 0; ++i) {
            if (i % 2 != 0) {
                (void)rshutdown(fd, SHUT_RDWR);
            }
            give_up(fd);
        }
    });
    threads.join();
    give_up(fd);
    EXPECT_EQ(begin_to_connect(fd, peer.port), 0);
    EXPECT_EQ(option(fd, SO_ERROR), 0);
    expect_echo(fd);
}

// One thread gives the socket up, another one as well and connects again: that connect comes to an end, although the
// first thread may still be busy with what it has given up.
void test_a_connect_beside_one_that_is_given_up_ends() {
    Peer peer;
    for (int i = 0; i < 300; ++i) {
        const Number fd = calling_socket();
        (void)begin_to_connect(fd, peer.port);
        std::atomic<int> ready{0};
        const auto together = [&ready] {
            for (++ready; ready.load() != 2;) {
            }
        };
        Threads threads;
        threads.start([&] {
            together();
            give_up(fd);
        });
        threads.start([&] {
            together();
            give_up(fd);
            (void)begin_to_connect(fd, peer.port);
            pollfd one{fd, POLLOUT, 0};
            EXPECT_EQ(rpoll(&one, 1, patience(10000)), 1); // also if the other thread has given it up since
        });
        threads.join();
    }
}

// The attempt comes to its end at any moment of the shutdown: that ends either the attempt or the connection.
void test_a_shutdown_while_a_connect_comes_to_its_end_is_not_lost() {
    const Number from = listener();
    const uint16_t port = port_of(from);
    for (int i = 0; i < 200; ++i) {
        const Number fd(rsocket(AF_INET, SOCK_STREAM, 0));
        std::atomic<bool> begun{false};
        int connected = -1;
        Threads threads;
        threads.start([&] {
            begun.store(true);
            connected = begin_to_connect(fd, port);
        });
        while (!begun.load()) {
        }
        const auto until = Clock::now() + std::chrono::microseconds(200 + i * 10);
        while (Clock::now() < until) {
        }
        const int shut = rshutdown(fd, SHUT_RDWR) == 0 ? 0 : errno;
        threads.join();
        if (connected == 0 && shut == 0) {
            pollfd one{fd, 0, 0};
            EXPECT_EQ(rpoll(&one, 1, 0), 1);
            EXPECT_EQ(one.revents & POLLHUP, POLLHUP);
        } else {
            EXPECT(connected == 0 || shut == 0);
        }
        pollfd one{from, POLLIN, 0};
        if (rpoll(&one, 1, 0) == 1) {
            (void)Number(raccept(from, nullptr, nullptr));
        }
    }
}

// ---- a connection that was given up

void test_a_socket_that_connects_a_hundred_times_keeps_no_descriptors() {
    Peer peer;
    const Number fd(rsocket(AF_INET, SOCK_STREAM, 0));
    const auto connect_and_give_up = [&] {
        EXPECT_EQ(begin_to_connect(fd, peer.port), 0);
        give_up(fd);
    };
    connect_and_give_up();
    const size_t before = open_fds();
    for (int i = 0; i < 100; ++i) {
        connect_and_give_up();
    }
    EXPECT(open_fds() < before + 50); // each connection has at least one
}

// The program may wait on the socket's descriptor in a kernel epoll. What the connection before left there would wake
// it for ever.
void test_a_socket_that_connects_again_is_not_readable_in_a_kernel_epoll() {
    const Number from = listener();
    const uint16_t port = port_of(from);
    const Number fd = connected_to(port);
    const Number before(raccept(from, nullptr, nullptr));
    const base::Descriptor kernel(epoll_create1(EPOLL_CLOEXEC));
    epoll_event event{};
    event.events = EPOLLIN;
    EXPECT_EQ(epoll_ctl(kernel.get(), EPOLL_CTL_ADD, fd, &event), 0);
    give_up(fd);
    EXPECT_EQ(begin_to_connect(fd, port), 0);
    const Number after(raccept(from, nullptr, nullptr));
    const auto start = Clock::now();
    while (epoll_wait(kernel.get(), &event, 1, 0) != 0) { // events of the new connection, until they are polled
        EXPECT(milliseconds_since(start) < patience(10000));
        pollfd one{fd, POLLIN, 0};
        EXPECT_EQ(rpoll(&one, 1, 1), 0);
    }
    send_all(after, "x");
    EXPECT_EQ(epoll_wait(kernel.get(), &event, 1, patience(10000)), 1);
}

// ---- a buffer that will be larger next time

// The receiver's buffer is small, the low water mark is what it can hold if it were as large as it was set to since.
Ends low_water_beyond_the_buffer() {
    const Number from = listener();
    Number client(rsocket(AF_INET, SOCK_STREAM, 0));
    set(client, SO_RCVBUF, 8192);
    const sockaddr_in to = loopback(port_of(from));
    EXPECT_EQ(rconnect(client, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    Ends ends{std::move(client), Number(raccept(from, nullptr, nullptr))};
    set(ends.client, SO_RCVBUF, 1 << 20);
    const int in_force = option(ends.client, SO_RCVBUF);
    EXPECT(in_force < 1 << 19);
    set(ends.client, SO_RCVLOWAT, 1 << 19);
    // More than there is space for: what is left goes on as the receiver makes space, if it ever does.
    const std::vector<char> data(static_cast<size_t>(in_force) + 65536, 'x');
    EXPECT_EQ(rfcntl(ends.server, F_SETFL, O_NONBLOCK), 0);
    EXPECT(rsend(ends.server, data.data(), data.size(), 0) >= in_force);
    return ends;
}

void test_a_poll_wakes_with_a_low_water_mark_beyond_the_buffer() {
    const Ends ends = low_water_beyond_the_buffer();
    pollfd one{ends.client, POLLIN, 0};
    EXPECT_EQ(rpoll(&one, 1, patience(10000)), 1);
    EXPECT_EQ(one.revents, POLLIN);
}

void test_a_receive_ends_with_a_low_water_mark_beyond_the_buffer() {
    const Ends ends = low_water_beyond_the_buffer();
    const timeval limit{patience(10000) / 1000, 0};
    EXPECT_EQ(rsetsockopt(ends.client, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
    std::vector<char> data(1 << 20);
    const auto start = Clock::now();
    EXPECT(rrecv(ends.client, data.data(), data.size(), 0) > 0);
    EXPECT(milliseconds_since(start) < patience(9000)); // not what is given when the time is over
}

// ---- children

// The kernel's numbers of all eventfds of this process, which no two of them share.
std::set<std::string> eventfds() {
    std::set<std::string> ids;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fdinfo")) {
        std::ifstream file(entry.path());
        for (std::string word; file >> word;) {
            if (word == "eventfd-id:" && file >> word) {
                ids.insert(word);
            }
        }
    }
    return ids;
}

std::set<std::string> new_since(const std::set<std::string>& before) {
    const std::set<std::string> now = eventfds();
    std::set<std::string> made;
    std::set_difference(now.begin(), now.end(), before.begin(), before.end(), std::inserter(made, made.end()));
    return made;
}

Number listener_with_a_limit() {
    Number from = listener();
    const timeval limit{0, 20000};
    EXPECT_EQ(rsetsockopt(from, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
    return from;
}

void sleep_in_vain(int from) {
    EXPECT_EQ(raccept(from, nullptr, nullptr), -1);
    EXPECT_EQ(errno, EAGAIN);
}

// What wakes the one would wake the other, and be taken from it.
void test_a_child_does_not_sleep_on_what_its_parent_sleeps_on() {
#ifdef __SANITIZE_THREAD__
    throw Skip("ThreadSanitizer lets no child of a process with threads start one");
#endif
    if (eventfds().empty()) {
        const Number from = listener();
        if (eventfds().empty()) {
            throw Skip("the kernel does not tell one eventfd from another");
        }
    }
    const Number from = listener_with_a_limit();
    Threads threads;
    threads.start([&] { // one that has not slept yet
        const auto before = eventfds();
        sleep_in_vain(from);
        const auto parents = new_since(before);
        EXPECT_EQ(parents.size(), 1);
        const pid_t pid = fork_with_threads();
        EXPECT(pid >= 0);
        if (pid == 0) {
            int status = 1;
            try {
                const Number own = listener_with_a_limit();
                const auto at_first = eventfds();
                sleep_in_vain(own);
                const bool still_here = eventfds().contains(*parents.begin());
                status = still_here && new_since(at_first).empty() ? 2 : 0;
            } catch (const std::exception&) {
            }
            _exit(status);
        }
        int status = 0;
        EXPECT_EQ(waitpid(pid, &status, 0), pid);
        EXPECT_EQ(status, 0);
    });
    threads.join();
}

// ---- time limits

int select_for(int fd, timeval* limit) {
    fd_set in;
    FD_ZERO(&in);
    FD_SET(fd, &in);
    return rselect(fd + 1, &in, nullptr, nullptr, limit);
}

int pselect_for(int fd, const timespec& limit) {
    fd_set in;
    FD_ZERO(&in);
    FD_SET(fd, &in);
    return rpselect(fd + 1, &in, nullptr, nullptr, &limit, nullptr);
}

int ppoll_for(int fd, const timespec& limit) {
    pollfd one{fd, POLLIN, 0};
    return rppoll(&one, 1, &limit, nullptr);
}

// What `wait` gives for a socket that something comes to once it sleeps.
template <class Wait> int woken(Wait&& wait) {
    const Ends ends = connected();
    Threads threads;
    threads.start([&, sleeper = syscall(SYS_gettid)] {
        await_thread_asleep(sleeper);
        send_all(ends.client, "x");
    });
    const int ready = wait(ends.server);
    threads.join();
    return ready;
}

// Those that end later than any clock can tell are none.
void test_the_longest_time_limits_do_not_end_at_once() {
    for (const timespec limit : {timespec{LONG_MAX, 0}, timespec{LONG_MAX, 999999999}, timespec{LONG_MAX / 1000, 0}}) {
        EXPECT_EQ(woken([&](int fd) { return ppoll_for(fd, limit); }), 1);
        EXPECT_EQ(woken([&](int fd) { return pselect_for(fd, limit); }), 1);
        timeval time{limit.tv_sec, 999999};
        EXPECT_EQ(woken([&](int fd) { return select_for(fd, &time); }), 1);
        EXPECT(time.tv_sec > 1000000);
    }
}

} // namespace

int main(int argc, char** argv) {
    signal(SIGPIPE, SIG_IGN);
    const Role roles[] = {{"accepts", role_accepts}, {"accepts_one", role_accepts_one}};
    if (const auto status = play_role(argc, argv, roles)) {
        return *status;
    }
    const CMUnitTest tests[] = {
        FABTEST(test_a_late_answer_to_a_connect_that_was_given_up_is_not_the_next_ones),
        FABTEST(test_a_late_refusal_is_not_taken_for_the_next_connects),
        FABTEST(test_a_connect_that_was_given_up_is_a_reset_to_its_peer),
        FABTEST(test_a_connect_that_waits_is_not_ended_by_one_that_was_given_up),
        FABTEST(test_connects_that_are_given_up_at_any_moment_leave_the_next_one_alone),
        FABTEST(test_threads_that_connect_and_give_up_the_same_socket_leave_it_whole),
        FABTEST(test_a_connect_beside_one_that_is_given_up_ends),
        FABTEST(test_a_shutdown_while_a_connect_comes_to_its_end_is_not_lost),
        FABTEST(test_a_socket_that_connects_a_hundred_times_keeps_no_descriptors),
        FABTEST(test_a_socket_that_connects_again_is_not_readable_in_a_kernel_epoll),
        FABTEST(test_a_poll_wakes_with_a_low_water_mark_beyond_the_buffer),
        FABTEST(test_a_receive_ends_with_a_low_water_mark_beyond_the_buffer),
        FABTEST(test_a_child_does_not_sleep_on_what_its_parent_sleeps_on),
        FABTEST(test_the_longest_time_limits_do_not_end_at_once),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
