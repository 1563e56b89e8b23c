// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// How a sleeping thread is woken: not too seldom, and not for ever. Needs no network.
#include "rsockets/wait_queue.hpp"

#include <functional>
#include <utility>

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fabtests/common/test.hpp"

namespace {
std::function<void()> before_write; // once
}

// In place of libc's, for the code under test, which is linked statically.
extern "C" ssize_t write(int fd, const void* data, size_t size) {
    if (const auto first = std::exchange(before_write, {}); first) {
        first();
    }
    return syscall(SYS_write, fd, data, size);
}

namespace {

using rsockets::Sleeper;
using rsockets::WaitQueue;

bool wakes(const Sleeper& sleeper) {
    pollfd one{sleeper.fd(), POLLIN, 0};
    return poll(&one, 1, 0) == 1;
}

void test_a_notified_sleeper_wakes_once() {
    WaitQueue wait_queue;
    Sleeper sleeper;
    sleeper.wait_on(wait_queue);
    EXPECT(!wakes(sleeper));
    wait_queue.notify_all();
    wait_queue.notify_all();
    EXPECT(wakes(sleeper));
    sleeper.clear();
    EXPECT(!wakes(sleeper));
    wait_queue.notify_all();
    EXPECT(wakes(sleeper));
}

// The other thread has begun to notify, and writes when this one has already cleared what it believes is there.
void test_a_notification_that_is_cleared_before_it_is_written_ends() {
    WaitQueue wait_queue;
    Sleeper sleeper;
    sleeper.wait_on(wait_queue);
    before_write = [&] { sleeper.clear(); };
    wait_queue.notify_all();
    EXPECT(wakes(sleeper));
    sleeper.clear();
    EXPECT(!wakes(sleeper));
    wait_queue.notify_all();
    EXPECT(wakes(sleeper));
}

void test_the_next_sleeper_of_a_thread_is_quiet() {
    WaitQueue wait_queue;
    {
        Sleeper sleeper;
        sleeper.wait_on(wait_queue);
        before_write = [&] { sleeper.clear(); };
        wait_queue.notify_all();
    }
    const Sleeper next;
    EXPECT(!wakes(next));
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_a_notified_sleeper_wakes_once),
        FABTEST(test_a_notification_that_is_cleared_before_it_is_written_ends),
        FABTEST(test_the_next_sleeper_of_a_thread_is_quiet),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
