// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Threads that use the same sets: however many put them into each other, no set ends up within itself; and each hears
// of what others have left.
#include <atomic>
#include <future>

#include <sys/epoll.h>
#include <sys/syscall.h>

#include "rsockets/test/asleep.hpp"
#include "rsockets/test/sockets.hpp"

namespace {

using namespace fabtests;
using namespace rsocket_test;

#if defined(__SANITIZE_THREAD__)
constexpr int rounds = 500;
#else
constexpr int rounds = 5000;
#endif

int put(int inner, int outer) {
    epoll_event event{};
    event.events = EPOLLIN;
    return repoll_ctl(outer, EPOLL_CTL_ADD, inner, &event);
}

void test_two_threads_cannot_make_a_cycle() {
    std::atomic<int> first{-1};
    std::atomic<int> second{-1};
    std::atomic<int> round{0};
    std::atomic<int> done{0};
    std::atomic<int> result{0};
    Threads threads;
    threads.start([&] {
        for (int i = 1; i <= rounds; ++i) {
            while (round.load() < i) {
            }
            result.store(put(second.load(), first.load()));
            done.store(i);
        }
    });
    int cycles = 0;
    int neither = 0;
    for (int i = 1; i <= rounds; ++i) {
        const Number one(repoll_create(0));
        const Number two(repoll_create(0));
        first.store(one);
        second.store(two);
        round.store(i);
        const int ret = put(one, two);
        while (done.load() < i) {
        }
        cycles += ret == 0 && result.load() == 0 ? 1 : 0;
        neither += ret != 0 && result.load() != 0 ? 1 : 0;
    }
    threads.join();
    EXPECT_EQ(cycles, 0);
    EXPECT_EQ(neither, 0);
}

// One thread sleeps in the set, and this one waits there behind what happens. Who was not woken finds the event when
// its time is over.
template <class Happens> void expect_that_both_hear(int set, const Happens& happens) {
    const auto time = patience(20000);
    const auto hear = [&] {
        const auto begin = Clock::now();
        epoll_event event{};
        EXPECT_EQ(repoll_wait(set, &event, 1, time), 1);
        EXPECT(milliseconds_since(begin) < time / 2);
    };
    std::promise<long> id;
    Threads threads;
    threads.start([&] {
        id.set_value(syscall(SYS_gettid));
        hear();
    });
    await_thread_asleep(id.get_future().get());
    happens();
    hear();
    threads.join();
}

// One of two threads takes what its array has space for; what tells of the rest must not be used up with that.
void test_what_one_thread_has_no_room_for_wakes_another_one() {
    const Ends one = connected();
    const Ends other = connected();
    for (int i = 0; i < 200; ++i) {
        const Number set(repoll_create(0));
        expect_that_both_hear(set, [&] {
            for (const int fd : {static_cast<int>(one.client), static_cast<int>(other.client)}) {
                epoll_event event{};
                event.events = EPOLLOUT | EPOLLONESHOT;
                EXPECT_EQ(repoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
            }
        });
    }
}

// Neither of two threads takes what both are to hear of, by level: a listener that has something to accept.
void test_what_one_thread_has_heard_of_wakes_another_one() {
    const Number from = listener();
    for (int i = 0; i < 50; ++i) {
        const Number set(repoll_create(0));
        EXPECT_EQ(put(from, set), 0);
        Number client;
        expect_that_both_hear(set, [&] { client = connected_to(port_of(from)); });
        EXPECT(Number(raccept(from, nullptr, nullptr)) >= 0);
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_two_threads_cannot_make_a_cycle),
        FABTEST(test_what_one_thread_has_no_room_for_wakes_another_one),
        FABTEST(test_what_one_thread_has_heard_of_wakes_another_one),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
