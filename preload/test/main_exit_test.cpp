// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A process whose main thread ends before others. main_exit_test.sh runs it.
#include <csignal>
#include <cstdio>
#include <thread>

#include <pthread.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <threads.h>

#include "preload/test/pair.hpp"

namespace {

using fabtests::Clock;
using fabtests::milliseconds_since;
using fabtests::patience;
using preload_test::Pair;

// The main thread of a child ends, another one runs `rest` behind that. The status of the child, whose process must end
// with that thread.
template <class Rest>
int status_of(
    const Rest& rest, void (*exit_main)() = [] { pthread_exit(nullptr); }) {
    const pid_t child = fork();
    if (child == 0) {
        static Pair pair; // this process's own, so that the library has a thread here
        const pthread_t main_thread = pthread_self();
        std::thread([main_thread, rest] {
            (void)pthread_join(main_thread, nullptr);
            rest(pair);
        }).detach();
        exit_main();
    }
    const auto start = Clock::now();
    int status = -1;
    pid_t ended = 0;
    while ((ended = waitpid(child, &status, WNOHANG)) == 0 && milliseconds_since(start) < patience(20000)) {
        usleep(1000);
    }
    if (ended == 0) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
    }
    return status;
}

void test_a_process_ends_with_its_last_thread() {
    EXPECT_EQ(status_of([](const Pair&) {}), 0);
}

void test_a_process_ends_behind_thrd_exit() {
    EXPECT_EQ(status_of([](const Pair&) {}, [] { thrd_exit(0); }), 0);
}

void test_a_process_ends_behind_exit_by_system_call() {
    EXPECT_EQ(status_of([](const Pair&) {}, [] { syscall(SYS_exit, 0); }), 0);
}

void test_other_threads_go_on_behind_the_main_thread() {
    EXPECT_EQ(status_of([](const Pair& pair) {
                  for (int i = 0; i < 1000; ++i) {
                      pair.exchange();
                  }
              }),
              0);
}

void test_a_signal_ends_a_process_whose_main_thread_has_ended() {
    EXPECT_EQ(status_of([](const Pair& pair) {
                  signal(SIGTERM, SIG_DFL);
                  kill(getpid(), SIGTERM);
                  (void)preload_test::receive(pair.a, 1);
              }),
              SIGTERM);
}

} // namespace

int main() {
#ifdef __SANITIZE_THREAD__
    printf("1..0 # SKIP main_exit_test: ThreadSanitizer does not survive the end of the main thread\n");
    return 0;
#endif
    const CMUnitTest tests[] = {
        FABTEST(test_a_process_ends_with_its_last_thread),
        FABTEST(test_a_process_ends_behind_thrd_exit),
        FABTEST(test_a_process_ends_behind_exit_by_system_call),
        FABTEST(test_other_threads_go_on_behind_the_main_thread),
        FABTEST(test_a_signal_ends_a_process_whose_main_thread_has_ended),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
