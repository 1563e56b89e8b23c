// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A byte that the peer sends past its library, as by io_uring or a system call of its own, on a connection whose bytes
// are in memory: each call at the other end ends, behind the bytes in front, with a reset. past_library_test.sh runs
// it.
#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <functional>
#include <vector>

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "preload/test/pair.hpp"
#include "preload/test/wakeup_parts/sleeper.hpp"

namespace {

using preload_test::Pair;
using wakeup_test::eventually;
using wakeup_test::Sleeper;

// By libc's own function, which the library's is in front of.
void send_past_library(int fd, uint8_t byte = 'r') {
    static auto* call =
        reinterpret_cast<long (*)(long, ...)>(dlsym(dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD), "syscall"));
    EXPECT(call != nullptr);
    EXPECT_EQ(call(SYS_sendto, fd, &byte, 1UL, MSG_NOSIGNAL, nullptr, 0UL), 1);
}

ssize_t recv_byte(int fd, int flags = 0) {
    char byte = 0;
    return recv(fd, &byte, 1, flags);
}

void expect_reset(int fd) {
    const ssize_t n = recv_byte(fd);
    const int error = errno;
    EXPECT_EQ(n, -1);
    EXPECT_EQ(error, ECONNRESET);
}

// A call that sleeps is ended by the byte.
void expect_call_ends(const Pair& pair, const std::function<ssize_t()>& call, ssize_t result, int error) {
    Sleeper sleeper(call);
    sleeper.await_asleep();
    send_past_library(pair.a);
    EXPECT_EQ(sleeper.result(), result);
    if (error != 0) {
        EXPECT_EQ(sleeper.error(), error);
    }
}

// What the ring takes, and, once the library has waited for the reader in vain, the kernel.
void fill(int fd, int flags) {
    static const std::vector<char> bytes(1 << 16);
    while (send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | flags) > 0) {
    }
}

void test_a_receiver_that_sleeps() {
    const Pair pair;
    expect_call_ends(
        pair, [&] { return recv_byte(pair.b); }, -1, ECONNRESET);
}

// The peer wakes it by an eventfd; the library's thread watches the socket.
void test_a_receiver_that_sleeps_on_an_eventfd() {
    const Pair pair;
    bool on_eventfd = false;
    EXPECT(eventually([&] {
        Sleeper sleeper([&] { return recv_byte(pair.b); });
        sleeper.await_asleep();
        on_eventfd = sleeper.is_on_eventfd();
        if (on_eventfd) {
            send_past_library(pair.a);
            EXPECT_EQ(sleeper.result(), -1);
            EXPECT_EQ(sleeper.error(), ECONNRESET);
            return true;
        }
        EXPECT_EQ(send(pair.a, "x", 1, 0), 1);
        EXPECT_EQ(sleeper.result(), 1);
        return false;
    }));
    EXPECT(on_eventfd);
}

void test_a_receiver_that_comes_later() {
    const Pair pair;
    send_past_library(pair.a);
    Sleeper sleeper([&] { return recv_byte(pair.b); });
    EXPECT_EQ(sleeper.result(), -1);
    EXPECT_EQ(sleeper.error(), ECONNRESET);
}

void test_a_receiver_with_a_time_limit() {
    const Pair pair;
    const timeval limit{wakeup_test::patience_ms() / 500, 0};
    EXPECT_EQ(setsockopt(pair.b, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
    expect_call_ends(
        pair, [&] { return recv_byte(pair.b); }, -1, ECONNRESET);
}

void test_a_receiver_that_has_a_part() {
    const Pair pair;
    std::array<char, 8> bytes{};
    EXPECT_EQ(send(pair.a, "abc", 3, 0), 3);
    expect_call_ends(
        pair, [&] { return recv(pair.b, bytes.data(), bytes.size(), MSG_WAITALL); }, 3, 0);
    EXPECT_EQ(memcmp(bytes.data(), "abc", 3), 0);
    expect_reset(pair.b);
}

void test_a_peek_for_all() {
    const Pair pair;
    std::array<char, 8> bytes{};
    EXPECT_EQ(send(pair.a, "abc", 3, 0), 3);
    Sleeper sleeper([&] { return recv(pair.b, bytes.data(), bytes.size(), MSG_PEEK | MSG_WAITALL); });
    sleeper.await_asleep();
    send_past_library(pair.a);
    const ssize_t n = sleeper.result(); // what was there, or that nothing more will come
    EXPECT(n == 3 || (n == -1 && sleeper.error() == ECONNRESET));
}

void test_a_poll() {
    const Pair pair;
    expect_call_ends(
        pair,
        [&] {
            pollfd one{pair.b, POLLIN, 0};
            return poll(&one, 1, -1) == 1 ? one.revents & POLLIN : -1;
        },
        POLLIN, 0);
    expect_reset(pair.b);
}

void test_a_select() {
    const Pair pair;
    expect_call_ends(
        pair,
        [&] {
            fd_set in;
            FD_ZERO(&in);
            FD_SET(pair.b, &in);
            return select(pair.b + 1, &in, nullptr, nullptr, nullptr);
        },
        1, 0);
    expect_reset(pair.b);
}

void expect_event_in_set(uint32_t trigger) {
    const Pair pair;
    const int set = epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{EPOLLIN | trigger, {}};
    EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, pair.b, &event), 0);
    pair.exchange();
    EXPECT(eventually([&] { return epoll_wait(set, &event, 1, 0) == 0; })); // the edges of before
    expect_call_ends(
        pair, [&] { return epoll_wait(set, &event, 1, -1); }, 1, 0);
    EXPECT((event.events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0);
    expect_reset(pair.b);
    close(set);
}

void test_a_set_by_level() { expect_event_in_set(0); }
void test_a_set_by_edge() { expect_event_in_set(EPOLLET); }

void test_a_set_within_a_set() {
    const Pair pair;
    const int inner = epoll_create1(EPOLL_CLOEXEC);
    const int outer = epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{EPOLLIN, {}};
    EXPECT_EQ(epoll_ctl(inner, EPOLL_CTL_ADD, pair.b, &event), 0);
    EXPECT_EQ(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &event), 0);
    pair.exchange();
    expect_call_ends(
        pair, [&] { return epoll_wait(outer, &event, 1, -1); }, 1, 0);
    EXPECT_EQ(epoll_wait(inner, &event, 1, 0), 1);
    expect_reset(pair.b);
    close(outer);
    close(inner);
}

// Those that never sleep.
void test_a_program_that_polls() {
    for (const int way : {0, 1, 2, 3}) {
        const Pair pair;
        const int set = epoll_create1(EPOLL_CLOEXEC);
        epoll_event event{EPOLLIN, {}};
        EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, pair.b, &event), 0);
        send_past_library(pair.a);
        EXPECT(eventually([&] {
            pollfd one{pair.b, POLLIN, 0};
            pollfd both{pair.b, POLLIN | POLLOUT, 0};
            return way == 0   ? recv_byte(pair.b, MSG_DONTWAIT) < 0 && errno == ECONNRESET
                   : way == 1 ? poll(&one, 1, 0) == 1
                   : way == 2 ? epoll_wait(set, &event, 1, 0) == 1
                              : poll(&both, 1, 0) == 1 && (both.revents & POLLIN) != 0;
        }));
        close(set);
    }
}

void test_a_sender_that_waits_for_space() {
    const Pair pair;
    fill(pair.b, MSG_DONTWAIT);
    expect_call_ends(
        pair,
        [&] {
            fill(pair.b, 0);
            return -1;
        },
        -1, ECONNRESET);
}

void test_a_poll_for_space() {
    const Pair pair;
    fill(pair.b, MSG_DONTWAIT);
    expect_call_ends(
        pair,
        [&] {
            pollfd one{pair.b, POLLOUT, 0};
            int n = 0;
            while ((n = poll(&one, 1, -1)) == 1 && one.revents == POLLOUT) {
                fill(pair.b, MSG_DONTWAIT);
            }
            return n == 1 && (one.revents & POLLERR) != 0 ? 1 : -1;
        },
        1, 0);
}

void test_the_bytes_in_front_are_read() {
    const Pair pair;
    EXPECT_EQ(send(pair.a, "in front", 8, 0), 8);
    send_past_library(pair.a);
    EXPECT(preload_test::receive(pair.b, 8, MSG_WAITALL) == "in front");
    expect_reset(pair.b);
}

// Also if another thread has found the byte, which looks for no bytes.
void test_the_bytes_in_front_are_read_though_another_thread_waits() {
    const Pair pair;
    Sleeper other([&] {
        pollfd one{pair.b, POLLRDHUP, 0};
        return poll(&one, 1, -1);
    });
    other.await_asleep();
    EXPECT_EQ(send(pair.a, "in front", 8, 0), 8);
    send_past_library(pair.a);
    EXPECT_EQ(other.result(), 1);
    EXPECT(preload_test::receive(pair.b, 8, MSG_WAITALL) == "in front");
    expect_reset(pair.b);
}

void test_several_threads_that_sleep() {
    const Pair pair;
    Sleeper receiver([&] { return recv_byte(pair.b); });
    receiver.await_asleep();
    Sleeper poller([&] {
        pollfd one{pair.b, POLLIN, 0};
        return poll(&one, 1, -1);
    });
    poller.await_asleep();
    Sleeper second([&] { return recv_byte(pair.b); });
    second.await_asleep();
    send_past_library(pair.a);
    EXPECT_EQ(poller.result(), 1);
    for (Sleeper* one : {&receiver, &second}) {
        EXPECT_EQ(one->result(), -1);
        EXPECT_EQ(one->error(), ECONNRESET);
    }
}

// The kernel's set reports one edge for a frame and the byte behind it. Another process has the connection, so that
// waiters are woken by frames.
void test_a_set_by_edge_whose_frame_is_followed() {
#ifdef __SANITIZE_THREAD__
    throw fabtests::Skip("ThreadSanitizer ends a process with threads that forks");
#endif
    constexpr int rounds = 20;
    for (int round = 0; round < rounds; ++round) {
        const Pair pair;
        const pid_t child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;) {
                pause();
            }
        }
        const int set = epoll_create1(EPOLL_CLOEXEC);
        epoll_event event{EPOLLIN | EPOLLET, {}};
        EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, pair.b, &event), 0);
        Sleeper sleeper([&] {
            for (;;) {
                if (epoll_wait(set, &event, 1, -1) != 1) {
                    return ssize_t{-1};
                }
                ssize_t n = 1;
                while (n > 0) {
                    std::array<char, 8> bytes{};
                    n = recv(pair.b, bytes.data(), bytes.size(), MSG_DONTWAIT);
                }
                if (n == 0 || errno != EAGAIN) {
                    return n;
                }
            }
        });
        sleeper.await_asleep();
        EXPECT_EQ(send(pair.a, "header", 6, 0), 6);
        send_past_library(pair.a);
        EXPECT_EQ(sleeper.result(), -1);
        EXPECT_EQ(sleeper.error(), ECONNRESET);
        close(set);
        EXPECT_EQ(kill(child, SIGKILL), 0);
        EXPECT_EQ(waitpid(child, nullptr, 0), child);
    }
}

void test_a_member_that_is_removed_and_added() {
    const Pair pair;
    const int set = epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{EPOLLIN, {}};
    EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, pair.b, &event), 0);
    pair.exchange();
    (void)epoll_wait(set, &event, 1, 0);
    EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_DEL, pair.b, nullptr), 0);
    send_past_library(pair.a);
    EXPECT_EQ(epoll_wait(set, &event, 1, 0), 0);
    event = {EPOLLIN, {}};
    EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, pair.b, &event), 0);
    EXPECT_EQ(epoll_wait(set, &event, 1, wakeup_test::patience_ms()), 1);
    expect_reset(pair.b);
    close(set);
}

// In a direction that TCP carries again, it is read as one of the program's. Nothing waits for ever, whether the
// direction stays with TCP, or a switch at a position in front of it is found.
void test_a_byte_in_front_of_a_switch() {
    const Pair pair;
    std::vector<char> bytes(1 << 16);
    size_t sent = 0;
    EXPECT(eventually([&] { // until the ring is left, as it is not read
        const ssize_t n = send(pair.a, bytes.data(), bytes.size(), MSG_DONTWAIT);
        sent += n > 0 ? static_cast<size_t>(n) : 0;
        return preload_test::path_of(pair.a) != 3;
    }));
    send_past_library(pair.a);
    for (size_t left = sent + 1; left != 0;) {
        const ssize_t n = recv(pair.b, bytes.data(), std::min(left, bytes.size()), 0);
        EXPECT(n > 0);
        left -= static_cast<size_t>(n);
    }
    const timeval limit{wakeup_test::patience_ms() / 1000, 0};
    EXPECT_EQ(setsockopt(pair.b, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
    for (int i = 0; i < 1000 && send(pair.a, "x", 1, MSG_NOSIGNAL) == 1; ++i) {
        pollfd one{pair.b, POLLIN, 0};
        EXPECT_EQ(poll(&one, 1, wakeup_test::patience_ms()), 1);
        EXPECT(recv_byte(pair.b) == 1 || errno == ECONNRESET);
    }
}

// One that looks like the library's own.
void test_a_byte_with_the_value_of_a_frame() {
    constexpr uint8_t wake = 0xb1;
    const Pair pair;
    Sleeper sleeper([&] { return recv_byte(pair.b); });
    sleeper.await_asleep();
    send_past_library(pair.a, wake);
    EXPECT_EQ(sleeper.result(), -1);
    EXPECT_EQ(sleeper.error(), ECONNRESET);
}

// The sender finds out as well.
void test_the_peer_is_reset() {
    const Pair pair;
    send_past_library(pair.a);
    expect_reset(pair.b);
    EXPECT((preload_test::events_of(pair.a, POLLIN) & (POLLIN | POLLHUP | POLLERR)) != 0);
    EXPECT_EQ(recv_byte(pair.a), -1);
    EXPECT_EQ(errno, ECONNRESET);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_a_receiver_that_sleeps),
        FABTEST(test_a_receiver_that_sleeps_on_an_eventfd),
        FABTEST(test_a_receiver_that_comes_later),
        FABTEST(test_a_receiver_with_a_time_limit),
        FABTEST(test_a_receiver_that_has_a_part),
        FABTEST(test_a_peek_for_all),
        FABTEST(test_a_poll),
        FABTEST(test_a_select),
        FABTEST(test_a_set_by_level),
        FABTEST(test_a_set_by_edge),
        FABTEST(test_a_set_within_a_set),
        FABTEST(test_a_program_that_polls),
        FABTEST(test_a_sender_that_waits_for_space),
        FABTEST(test_a_poll_for_space),
        FABTEST(test_the_bytes_in_front_are_read),
        FABTEST(test_the_bytes_in_front_are_read_though_another_thread_waits),
        FABTEST(test_several_threads_that_sleep),
        FABTEST(test_a_set_by_edge_whose_frame_is_followed),
        FABTEST(test_a_member_that_is_removed_and_added),
        FABTEST(test_a_byte_in_front_of_a_switch),
        FABTEST(test_a_byte_with_the_value_of_a_frame),
        FABTEST(test_the_peer_is_reset),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
