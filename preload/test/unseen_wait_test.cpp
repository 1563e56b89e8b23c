// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Programs that move bytes by libc's calls, but wait by system calls of their own: their connections stay with the
// kernel until a wait is seen. unseen_wait_test.sh runs it under the preload library.
#include <atomic>
#include <cerrno>
#include <string>
#include <thread>

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/syscall.h>

#include "preload/test/pair.hpp"

namespace {

using preload_test::Connected;
using preload_test::path_of;

constexpr int messages = 1000; // many more than an upgrade needs

// The library does not see this one, as it sees syscall(2).
long own_call(long number, long a, long b, long c, long d, long e) {
    long result = 0;
    register long fourth __asm__("r10") = d;
    register long fifth __asm__("r8") = e;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth)
                     : "rcx", "r11", "memory");
    return result;
}

int patience() { return static_cast<int>(fabtests::patience(10000)); }

void poll_unseen(int fd, short events) {
    pollfd one{fd, events, 0};
    EXPECT_EQ(own_call(SYS_poll, reinterpret_cast<long>(&one), 1, patience(), 0, 0), 1);
}

class Set {
  public:
    Set() : fd_(epoll_create1(EPOLL_CLOEXEC)) {}
    explicit Set(int member) : Set() { add(member); }
    Set(const Set&) = delete;
    Set& operator=(const Set&) = delete;
    ~Set() { close(fd_); }
    [[nodiscard]] int fd() const { return fd_; }
    void add(int member) const {
        epoll_event event{};
        event.events = EPOLLIN;
        EXPECT_EQ(epoll_ctl(fd_, EPOLL_CTL_ADD, member, &event), 0);
    }
    void wait() const {
        epoll_event event{};
        EXPECT_EQ(epoll_wait(fd_, &event, 1, patience()), 1);
    }
    void wait_unseen() const {
        epoll_event event{};
        EXPECT_EQ(own_call(SYS_epoll_pwait, fd_, reinterpret_cast<long>(&event), 1, patience(), 0), 1);
    }

  private:
    int fd_;
};

// Of which b does not block.
struct HalfBlocking : Connected {
    HalfBlocking() { EXPECT_EQ(fcntl(b, F_SETFL, O_NONBLOCK), 0); }
    // a asks, b waits and answers.
    template <class Wait> void exchange(const Wait& wait) const {
        EXPECT_EQ(send(a, "x", 1, 0), 1);
        wait();
        EXPECT_EQ(preload_test::receive(b, 1), "x");
        EXPECT_EQ(send(b, "y", 1, 0), 1);
        EXPECT_EQ(preload_test::receive(a, 1), "y");
    }
    template <class Wait> void expect_kernel(const Wait& wait) const {
        for (int i = 0; i < messages; ++i) {
            exchange(wait);
        }
        EXPECT_EQ(path_of(a), 0);
        EXPECT_EQ(path_of(b), 0);
    }
    template <class Wait> void expect_upgrade(const Wait& wait) const {
        for (int i = 0; i < 5000 && (path_of(a) != 3 || path_of(b) != 3); ++i) {
            exchange(wait);
            usleep(1000);
        }
        EXPECT_EQ(path_of(a), 3);
        EXPECT_EQ(path_of(b), 3);
        exchange(wait);
    }
};

void test_unseen_polls_leave_a_connection_to_the_kernel() {
    const HalfBlocking pair;
    pair.expect_kernel([&] { poll_unseen(pair.b, POLLIN); });
}

void test_a_set_that_only_unseen_calls_wait_in_leaves_its_members_to_the_kernel() {
    const HalfBlocking pair;
    const Set set(pair.b);
    pair.expect_kernel([&] { set.wait_unseen(); });
}

void test_a_wait_for_the_connection_to_be_made_tells_nothing() {
    const HalfBlocking pair;
    EXPECT_EQ(preload_test::events_of(pair.b, POLLOUT), POLLOUT);
    pair.expect_kernel([&] { poll_unseen(pair.b, POLLIN); });
}

// A receive that finds nothing before each wait, as of loops that read until EAGAIN.
void test_a_try_before_each_wait_tells_nothing() {
    const HalfBlocking pair;
    pair.expect_kernel([&] {
        char byte = 0;
        if (recv(pair.b, &byte, 1, MSG_PEEK) < 0) {
            EXPECT_EQ(errno, EAGAIN);
        }
        poll_unseen(pair.b, POLLIN);
    });
}

void test_receives_that_must_not_wait_count_as_a_socket_that_does_not_block() {
    const Connected pair;
    for (int i = 0; i < messages; ++i) {
        EXPECT_EQ(send(pair.a, "x", 1, 0), 1);
        poll_unseen(pair.b, POLLIN);
        EXPECT_EQ(preload_test::receive(pair.b, 1, MSG_DONTWAIT), "x");
    }
    EXPECT_EQ(path_of(pair.b), 0);
}

void test_a_poll_of_libc_lets_it_upgrade() {
    const HalfBlocking pair;
    pair.expect_kernel([&] { poll_unseen(pair.b, POLLIN); });
    pair.expect_upgrade([&] { EXPECT_EQ(preload_test::events_of(pair.b, POLLIN), POLLIN); });
}

void test_a_select_of_libc_lets_it_upgrade() {
    const HalfBlocking pair;
    pair.expect_upgrade([&] {
        fd_set in;
        FD_ZERO(&in);
        FD_SET(pair.b, &in);
        EXPECT_EQ(select(pair.b + 1, &in, nullptr, nullptr, nullptr), 1);
    });
}

void test_a_wait_in_its_set_lets_it_upgrade() {
    const HalfBlocking pair;
    const Set set(pair.b);
    pair.expect_upgrade([&] { set.wait(); });
}

void test_a_member_that_is_removed_before_it_is_read_may_upgrade() {
    const HalfBlocking pair;
    const Set set;
    pair.expect_upgrade([&] {
        set.add(pair.b);
        set.wait();
        EXPECT_EQ(epoll_ctl(set.fd(), EPOLL_CTL_DEL, pair.b, nullptr), 0);
    });
}

void test_a_wait_in_a_set_around_its_set_lets_it_upgrade() {
    for (const bool added_late : {false, true}) {
        const HalfBlocking pair;
        const Set inner(pair.b);
        const Set outer;
        if (added_late) {
            epoll_event event{};
            EXPECT_EQ(epoll_wait(outer.fd(), &event, 1, 0), 0);
        }
        outer.add(inner.fd());
        pair.expect_upgrade([&] { outer.wait(); });
    }
}

void test_a_poll_of_its_set_lets_it_upgrade() {
    const HalfBlocking pair;
    const Set set(pair.b);
    pair.expect_upgrade([&] { EXPECT_EQ(preload_test::events_of(set.fd(), POLLIN), POLLIN); });
}

void test_one_that_only_sends_is_upgraded_by_waits_for_space() {
    const Connected pair;
    EXPECT_EQ(fcntl(pair.b, F_SETFL, O_NONBLOCK), 0);
    for (int i = 0; i < 5000 && path_of(pair.b) < 2; ++i) {
        EXPECT_EQ(preload_test::events_of(pair.b, POLLOUT), POLLOUT);
        EXPECT_EQ(send(pair.b, "x", 1, 0), 1);
        EXPECT_EQ(preload_test::receive(pair.a, 1), "x");
        usleep(1000);
    }
    EXPECT(path_of(pair.b) >= 2);
}

void test_tries_without_a_wait_let_it_upgrade() {
    const HalfBlocking pair;
    char byte = 0;
    for (int i = 0; i < 100; ++i) {
        EXPECT_EQ(recv(pair.b, &byte, 1, 0), -1);
        EXPECT_EQ(errno, EAGAIN);
    }
    pair.expect_upgrade([&] {
        while (recv(pair.b, &byte, 1, MSG_PEEK) < 0) {
            EXPECT_EQ(errno, EAGAIN);
        }
    });
}

// Each message waits until the peer's service has found that nobody reads it, until that returns the connection.
void expect_return(int a, int b) {
    constexpr int most = 60;
    for (int i = 0; i < most && path_of(b) > 1; ++i) {
        EXPECT_EQ(send(a, "x", 1, 0), 1);
        poll_unseen(b, POLLIN);
        EXPECT_EQ(preload_test::receive(b, 1), "x");
        EXPECT_EQ(send(b, "y", 1, 0), 1);
        EXPECT_EQ(preload_test::receive(a, 1), "y");
    }
    EXPECT(path_of(b) <= 1); // neither direction is in memory
    EXPECT(path_of(a) <= 1);
    for (int i = 0; i < messages; ++i) {
        EXPECT_EQ(send(a, "x", 1, 0), 1);
        poll_unseen(b, POLLIN);
        EXPECT_EQ(preload_test::receive(b, 1), "x");
    }
}

void test_a_blocking_socket_that_is_polled_unseen_returns_to_the_kernel() {
    const preload_test::Pair pair;
    expect_return(pair.a, pair.b);
}

void test_one_that_was_waited_for_before_returns_to_the_kernel() {
    const HalfBlocking pair;
    pair.expect_upgrade([&] { EXPECT_EQ(preload_test::events_of(pair.b, POLLIN), POLLIN); });
    expect_return(pair.a, pair.b);
}

void test_it_returns_beside_a_busy_connection() {
    const preload_test::Pair pair;
    const preload_test::Pair busy;
    std::atomic<bool> done{false};
    std::thread other([&] {
        while (!done) {
            busy.exchange();
            usleep(1000);
        }
    });
    expect_return(pair.a, pair.b);
    done = true;
    other.join();
    EXPECT_EQ(path_of(busy.b), 3);
}

void test_what_is_left_in_memory_behind_a_return_is_announced() {
    const preload_test::Pair pair;
    EXPECT_EQ(send(pair.a, "x", 1, 0), 1);
    const int least = 2;
    EXPECT_EQ(setsockopt(pair.a, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof(least)), 0); // only the kernel has it
    poll_unseen(pair.b, POLLIN);
    EXPECT_EQ(preload_test::receive(pair.b, 1), "x");
}

void test_the_rest_is_announced_to_a_reader_that_came_late_and_took_a_part() {
    const preload_test::Pair pair;
    constexpr size_t part = 100;
    constexpr size_t parts = 3;
    EXPECT_EQ(send(pair.a, std::string(parts * part, 'x').data(), parts * part, 0), parts * part);
    for (size_t i = 0; i < parts; ++i) {
        poll_unseen(pair.b, POLLIN);
        usleep(50000); // much longer than one that has waited for the frame needs
        EXPECT_EQ(preload_test::receive(pair.b, part), std::string(part, 'x'));
    }
}

void test_a_reader_that_is_busy_gets_one_frame() {
    const preload_test::Pair pair;
    constexpr useconds_t pause = 150000;
    constexpr int writes = 10;
    for (int i = 0; i < writes; ++i) {
        EXPECT_EQ(send(pair.a, "x", 1, 0), 1);
        usleep(pause);
    }
    int unread = -1;
    EXPECT_EQ(own_call(SYS_ioctl, pair.b, FIONREAD, reinterpret_cast<long>(&unread), 0, 0), 0);
    EXPECT_EQ(unread, 1);
    EXPECT_EQ(preload_test::receive(pair.b, writes), std::string(writes, 'x'));
    pair.exchange();
    EXPECT_EQ(path_of(pair.b), 3);
}

void test_bytes_are_not_answered_with_a_reset_after_shutdown_of_both() {
    const preload_test::Pair pair;
    EXPECT_EQ(send(pair.a, "x", 1, 0), 1);
    EXPECT_EQ(shutdown(pair.b, SHUT_RDWR), 0);
    usleep(700000); // longer than bytes are left unread
    EXPECT_EQ(preload_test::receive(pair.a, 1), "");
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_unseen_polls_leave_a_connection_to_the_kernel),
        FABTEST(test_a_set_that_only_unseen_calls_wait_in_leaves_its_members_to_the_kernel),
        FABTEST(test_a_wait_for_the_connection_to_be_made_tells_nothing),
        FABTEST(test_a_try_before_each_wait_tells_nothing),
        FABTEST(test_receives_that_must_not_wait_count_as_a_socket_that_does_not_block),
        FABTEST(test_a_poll_of_libc_lets_it_upgrade),
        FABTEST(test_a_select_of_libc_lets_it_upgrade),
        FABTEST(test_a_wait_in_its_set_lets_it_upgrade),
        FABTEST(test_a_member_that_is_removed_before_it_is_read_may_upgrade),
        FABTEST(test_a_wait_in_a_set_around_its_set_lets_it_upgrade),
        FABTEST(test_a_poll_of_its_set_lets_it_upgrade),
        FABTEST(test_one_that_only_sends_is_upgraded_by_waits_for_space),
        FABTEST(test_tries_without_a_wait_let_it_upgrade),
        FABTEST(test_a_blocking_socket_that_is_polled_unseen_returns_to_the_kernel),
        FABTEST(test_one_that_was_waited_for_before_returns_to_the_kernel),
        FABTEST(test_it_returns_beside_a_busy_connection),
        FABTEST(test_what_is_left_in_memory_behind_a_return_is_announced),
        FABTEST(test_the_rest_is_announced_to_a_reader_that_came_late_and_took_a_part),
        FABTEST(test_a_reader_that_is_busy_gets_one_frame),
        FABTEST(test_bytes_are_not_answered_with_a_reset_after_shutdown_of_both),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
