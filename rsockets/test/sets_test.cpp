// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Sets within sets: however many threads put them into each other, no set ends up within itself.
#include <atomic>

#include <sys/epoll.h>

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

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_two_threads_cannot_make_a_cycle),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
