// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A set in which a child waits, too, or alone: no event of an upgraded connection is lost. set_processes_test.sh runs
// it under the preload library.
#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <thread>

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fabtests/common/test.hpp"
#include "preload/test/child.hpp"
#include "preload/test/pair.hpp"

namespace {

using namespace preload_test;

// A child that waits in the set for as long as the object lives, without the connection that is in it.
class WaitingChild {
  public:
    WaitingChild(int set, const Pair& pair, int timeout) {
        std::array<int, 2> begun{};
        EXPECT_EQ(pipe(begun.data()), 0);
        child_ = fork();
        EXPECT(child_ >= 0);
        if (child_ == 0) {
            close(pair.a);
            close(pair.b);
            (void)!write(begun[1], "", 1);
            for (;;) {
                epoll_event event{};
                (void)epoll_wait(set, &event, 1, timeout);
            }
        }
        char byte = 0;
        EXPECT_EQ(read(begun[0], &byte, 1), 1);
        close(begun[0]);
        close(begun[1]);
    }
    WaitingChild(const WaitingChild&) = delete;
    WaitingChild& operator=(const WaitingChild&) = delete;
    ~WaitingChild() {
        kill(child_, SIGKILL);
        waitpid(child_, nullptr, 0);
    }

  private:
    pid_t child_ = -1;
};

// A thread that sends back what comes to pair.a.
class Echo {
  public:
    explicit Echo(const Pair& pair)
        : pair_(pair), thread_([&pair] {
              char byte = 0;
              while (recv(pair.a, &byte, 1, 0) == 1) {
                  (void)send(pair.a, &byte, 1, 0);
              }
          }) {}
    Echo(const Echo&) = delete;
    Echo& operator=(const Echo&) = delete;
    ~Echo() {
        shutdown(pair_.b, SHUT_RDWR);
        thread_.join();
    }

  private:
    const Pair& pair_;
    std::thread thread_;
};

void send_and_await(const Pair& pair, int set) {
    char byte = 'x';
    epoll_event event{};
    EXPECT_EQ(send(pair.b, &byte, 1, 0), 1);
    EXPECT_EQ(epoll_wait(set, &event, 1, static_cast<int>(fabtests::patience(5000))), 1);
    EXPECT_EQ(event.data.fd, pair.b);
    EXPECT_EQ(recv(pair.b, &byte, 1, 0), 1);
}

// The kernel tells an event to one of two processes that wait in a set. No wake-up may be lost to the other one.
void test_a_child_that_waits_in_the_same_set_takes_no_wakeup() {
    constexpr int rounds = 1000;
    for (const uint32_t kind : {uint32_t{0}, uint32_t{EPOLLEXCLUSIVE}}) {
        for (const int timeout : {-1, 10}) {
            const Pair pair;
            const int set = epoll_create1(EPOLL_CLOEXEC);
            epoll_event event{};
            event.events = EPOLLIN | kind;
            event.data.fd = pair.b;
            EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, pair.b, &event), 0);
            const Echo echo(pair);
            send_and_await(pair, set);
            EXPECT_EQ(path_of(pair.b), 3);
            {
                const WaitingChild child(set, pair, timeout);
                while (path_of(pair.b) != 0) { // it is handed over once the child waits
                    send_and_await(pair, set);
                }
                for (int i = 0; i < rounds; ++i) {
                    send_and_await(pair, set);
                }
                EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_DEL, pair.b, nullptr), 0);
                EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_DEL, pair.b, nullptr), -1);
            }
            close(set);
        }
    }
}

// A thread that sleeps in the set while another one forks has waited in it.
void test_a_child_waits_in_a_set_in_which_a_thread_sleeps_already() {
    constexpr int rounds = 200;
    for (int i = 0; i < rounds; ++i) {
        const Pair pair;
        const int set = epoll_create1(EPOLL_CLOEXEC);
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.fd = pair.b;
        EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, pair.b, &event), 0);
        std::atomic<int> got{0};
        std::thread sleeper([&] {
            epoll_event told{};
            got = epoll_wait(set, &told, 1, static_cast<int>(fabtests::patience(5000)));
        });
        const WaitingChild child(set, pair, -1);
        char byte = 'x';
        EXPECT_EQ(send(pair.a, &byte, 1, 0), 1);
        sleeper.join();
        EXPECT_EQ(got.load(), 1);
        EXPECT_EQ(recv(pair.b, &byte, 1, 0), 1);
        close(set);
    }
}

// As of a daemon: the parent has made the set and never waits in it.
void test_a_set_in_which_only_the_child_waits_serves_upgraded_connections() {
    const int set = epoll_create1(EPOLL_CLOEXEC);
    in_child([&] {
        const Pair pair;
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.fd = pair.b;
        EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, pair.b, &event), 0);
        const Echo echo(pair);
        for (int i = 0; i < 1000; ++i) {
            send_and_await(pair, set);
        }
        return path_of(pair.b) == 3 ? 0 : 1;
    });
    close(set);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_a_child_that_waits_in_the_same_set_takes_no_wakeup),
        FABTEST(test_a_child_waits_in_a_set_in_which_a_thread_sleeps_already),
        FABTEST(test_a_set_in_which_only_the_child_waits_serves_upgraded_connections),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
