// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Calls of several threads on one descriptor at the same moment: each takes effect before the other, or after it.
#include <atomic>
#include <cerrno>
#include <functional>
#include <semaphore>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "rsockets/test/asleep.hpp"
#include "rsockets/test/fabric_hook.hpp"
#include "rsockets/test/sockets.hpp"

namespace {

using namespace fabtests;
using namespace rsocket_test;

int connect(int fd, uint16_t port) {
    const sockaddr_in to = loopback(port);
    return rconnect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0 ? 0 : errno;
}

void disconnect(int fd) {
    sockaddr none{};
    none.sa_family = AF_UNSPEC;
    EXPECT_EQ(rconnect(fd, &none, sizeof(none)), 0);
}

int option(int fd, int name) {
    int value = 0;
    socklen_t length = sizeof(value);
    return rgetsockopt(fd, SOL_SOCKET, name, &value, &length) == 0 ? value : -errno;
}

// ---- a call on a connection that another thread replaces

// A thread sleeps in `call` on the client's end when that is disconnected, and connected again.
struct Replaced {
    Replaced(bool full, const std::function<void(int)>& call) {
        while (full && rsend(client, part.data(), part.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
        }
        (void)start_asleep(threads, [&] { call(client); });
        disconnect(client);
        EXPECT_EQ(connect(client, port_of(from)), 0);
        second = Number(raccept(from, nullptr, nullptr));
    }

    const std::string part = std::string(65536, 'f');
    const Number from = listener();
    const Number client = connected_to(port_of(from));
    const Number first{raccept(from, nullptr, nullptr)};
    Number second; // the server's end of the next connection
    Threads threads;
};

void test_a_receive_does_not_go_on_on_the_next_connection() {
    for (const int flags : {0, static_cast<int>(MSG_WAITALL)}) {
        ssize_t got = 0;
        Replaced ends(false, [&](int fd) {
            char bytes[4];
            got = rrecv(fd, bytes, sizeof(bytes), flags);
        });
        send_all(ends.second, "next");
        ends.threads.join();
        EXPECT(got <= 0);
        EXPECT_EQ(received(ends.client, 4), "next");
    }
}

void test_a_send_does_not_go_on_on_the_next_connection() {
    int error = 0;
    Replaced ends(true, [&](int fd) { error = rsend(fd, "x", 1, MSG_NOSIGNAL) < 0 ? errno : 0; });
    ends.threads.join();
    EXPECT(error == EPIPE || error == ECONNRESET);
    send_all(ends.client, "next");
    EXPECT_EQ(received(ends.second, 4), "next");
}

// Holds up a thread where its call asks for the status of a connection, or listens, for the first time.
thread_local bool held_up = false;
std::binary_semaphore reached{0};
std::binary_semaphore goes_on{0};

void hold_up() {
    if (std::exchange(held_up, false)) {
        reached.release();
        goes_on.acquire();
    }
}

// One thread is within `call` when `happens` is run.
void during(const std::function<void()>& call, const std::function<void()>& happens) {
    fabric_hook.before_status.store(hold_up);
    fabric_hook.before_listen.store(hold_up);
    Threads threads;
    threads.start([&] {
        held_up = true;
        call();
        EXPECT(!held_up);
    });
    reached.acquire();
    happens();
    goes_on.release();
    threads.join();
    fabric_hook.before_status.store(nullptr);
    fabric_hook.before_listen.store(nullptr);
}

void test_a_shutdown_of_a_connection_does_not_shut_the_next_one() {
    const Number from = listener();
    for (const int how : {SHUT_RD, SHUT_WR, SHUT_RDWR}) {
        const Number fd = connected_to(port_of(from));
        const Number before(raccept(from, nullptr, nullptr));
        during([&] { (void)rshutdown(fd, how); },
               [&] {
                   disconnect(fd);
                   EXPECT_EQ(connect(fd, port_of(from)), 0);
               });
        const Number after(raccept(from, nullptr, nullptr));
        send_all(fd, "x");
        EXPECT_EQ(received(after, 1), "x");
        pollfd one{fd, POLLIN | POLLRDHUP, 0};
        EXPECT_EQ(rpoll(&one, 1, 0), 0);
        send_all(after, "y");
        EXPECT_EQ(received(fd, 1), "y");
    }
}

// The kernel's descriptor of the socket becomes readable with the result of a connect, until a call has reported it.
void test_a_poll_of_a_connection_does_not_use_up_the_result_of_the_next_connect() {
    const Number from = listener();
    const Number fd = connected_to(port_of(from));
    const Number before(raccept(from, nullptr, nullptr));
    EXPECT_EQ(rfcntl(fd, F_SETFL, O_NONBLOCK), 0);
    during(
        [&] {
            pollfd one{fd, POLLIN, 0};
            (void)rpoll(&one, 1, 0);
        },
        [&] {
            disconnect(fd);
            EXPECT_EQ(connect(fd, port_of(from)), EINPROGRESS);
        });
    const Number after(raccept(from, nullptr, nullptr));
    pollfd kernel{fd, POLLIN, 0};
    EXPECT_EQ(::poll(&kernel, 1, patience(10000)), 1);
    pollfd one{fd, POLLOUT, 0};
    EXPECT_EQ(rpoll(&one, 1, patience(10000)), 1);
}

// Of a send that has sent a part, another thread's disconnect is the next call's to report.
void test_a_send_that_returns_a_part_leaves_the_error_to_the_next_call() {
    const Number from = listener();
    for (const bool again : {false, true}) {
        const Number fd = connected_to(port_of(from));
        const Number before(raccept(from, nullptr, nullptr));
        const std::vector<char> much(size_t{50} << 20);
        ssize_t sent = 0;
        Threads threads;
        (void)start_asleep(threads, [&] { sent = rsend(fd, much.data(), much.size(), MSG_NOSIGNAL); });
        disconnect(fd);
        EXPECT_EQ(again ? connect(fd, port_of(from)) : 0, 0);
        threads.join();
        EXPECT(sent > 0);
        EXPECT(sent < static_cast<ssize_t>(much.size()));
        EXPECT_EQ(option(fd, SO_ERROR), again ? 0 : ECONNRESET);
        EXPECT_EQ(option(fd, SO_ERROR), 0);
    }
}

// The first call finds its address in use by the second one.
void test_a_listen_that_fails_does_not_stop_what_another_thread_listens_on_since() {
    const Number fd(rsocket(AF_INET, SOCK_STREAM, 0));
    const sockaddr_in any = loopback(0);
    EXPECT_EQ(rbind(fd, reinterpret_cast<const sockaddr*>(&any), sizeof(any)), 0);
    const uint16_t port = port_of(fd);
    during([&] { (void)rlisten(fd, 1); },
           [&] {
               EXPECT_EQ(rshutdown(fd, SHUT_RDWR), 0);
               EXPECT_EQ(rlisten(fd, 1), 0);
           });
    const Number client = connected_to(port);
    EXPECT(Number(raccept(fd, nullptr, nullptr)) >= 0);
}

// ---- duplicates

void test_dup2_that_fails_leaves_the_descriptor_as_it_was() {
    const Ends ends = connected();
    const Number high(rfcntl(ends.client, F_DUPFD, 500));
    rlimit limit{};
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    rlimit low = limit;
    low.rlim_cur = static_cast<rlim_t>(high);
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
    const int ret = rdup2(ends.server, high);
    const int error = errno;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    EXPECT_EQ(ret, -1);
    EXPECT_EQ(error, EBADF);
    send_all(high, "x");
    EXPECT_EQ(received(ends.server, 1), "x");
}

// Programs replace a descriptor while other threads use it: these find either socket.
void test_a_descriptor_is_a_socket_while_dup2_replaces_it() {
    const Number one(rsocket(AF_INET, SOCK_STREAM, 0));
    const Number other(rsocket(AF_INET, SOCK_STREAM, 0));
    const Number replaced(rdup(one));
    std::atomic<bool> stop{false};
    std::atomic<int> uses{0};
    std::atomic<int> failures{0};
    Threads threads;
    threads.start([&] {
        while (!stop.load()) {
            failures += option(replaced, SO_TYPE) == SOCK_STREAM ? 0 : 1;
            ++uses;
        }
    });
    for (int i = 0; i < 20000 || uses.load() < 20000; ++i) {
        EXPECT_EQ(rdup2(i % 2 == 0 ? other : one, replaced), static_cast<int>(replaced));
    }
    stop.store(true);
    threads.join();
    EXPECT_EQ(failures.load(), 0);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_a_receive_does_not_go_on_on_the_next_connection),
        FABTEST(test_a_send_does_not_go_on_on_the_next_connection),
        FABTEST(test_a_shutdown_of_a_connection_does_not_shut_the_next_one),
        FABTEST(test_a_poll_of_a_connection_does_not_use_up_the_result_of_the_next_connect),
        FABTEST(test_a_send_that_returns_a_part_leaves_the_error_to_the_next_call),
        FABTEST(test_a_listen_that_fails_does_not_stop_what_another_thread_listens_on_since),
        FABTEST(test_dup2_that_fails_leaves_the_descriptor_as_it_was),
        FABTEST(test_a_descriptor_is_a_socket_while_dup2_replaces_it),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
