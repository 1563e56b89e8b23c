// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Sockets that are closed at the very moment at which someone looks at them who is in no call on them: a set that holds
// them, in another thread, or the library's own thread. A sanitizer sees what touches a connection that is gone.
#include <atomic>
#include <chrono>

#include <sys/epoll.h>

#include "rsockets/test/sockets.hpp"

namespace {

using namespace fabtests;
using namespace rsocket_test;

#if defined(__SANITIZE_THREAD__)
constexpr int rounds = 150;
#else
constexpr int rounds = 400;
#endif

Ends connected_over(int from, uint16_t port) {
    Number client = connected_to(port);
    return {std::move(client), Number(raccept(from, nullptr, nullptr))};
}

void test_a_set_looks_while_another_thread_closes() {
    const Number from = listener();
    const uint16_t port = port_of(from);
    const Number set(repoll_create(0));
    std::atomic<bool> stop{false};
    Threads threads;
    threads.start([&] {
        epoll_event events[16];
        while (!stop.load()) {
            EXPECT(repoll_wait(set, events, 16, 1) >= 0);
        }
    });
    try {
        for (int i = 0; i < rounds; ++i) {
            Ends ends = connected_over(from, port);
            for (const int fd : {int{ends.client}, int{ends.server}}) {
                epoll_event event{};
                event.events = i % 3 == 0 ? EPOLLIN | EPOLLET : EPOLLIN | EPOLLOUT;
                event.data.fd = fd;
                EXPECT_EQ(repoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
            }
            send_all(ends.client, "x");
            EXPECT_EQ(received(ends.server, 1), "x");
        }
    } catch (...) {
        stop.store(true);
        throw;
    }
    stop.store(true);
    threads.join();
}

// The library's thread looks at a socket once it has been quiet for some milliseconds: the pauses meet that moment.
void test_the_librarys_thread_looks_while_the_program_closes() {
    const Number from = listener();
    const uint16_t port = port_of(from);
    for (int i = 0; i < rounds; ++i) {
        const Ends ends = connected_over(from, port);
        send_all(ends.client, "x");
        EXPECT_EQ(received(ends.server, 1), "x");
        send_all(ends.server, "y");
        EXPECT_EQ(received(ends.client, 1), "y");
        const auto until = Clock::now() + std::chrono::microseconds((i % 64) * 100);
        while (Clock::now() < until) {
        }
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_a_set_looks_while_another_thread_closes),
        FABTEST(test_the_librarys_thread_looks_while_the_program_closes),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
