// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A program to which the kernel gives orphans, by PR_SET_CHILD_SUBREAPER or because it is process 1 of its namespace,
// does not see the fabric's worker either. reaper_test.sh runs it; the worker, which is never ready, is this program.
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "preload/fabric/control.hpp"
#include "preload/test/pair.hpp"

namespace {

using preload_test::Connected;
using preload_test::receive;
using preload_test::send_all;

constexpr const char* worker_name = "rspreload-fabric";
constexpr const char* file_name = "REAPER_FILE"; // the ids of the workers
constexpr int patience = 20000;                  // milliseconds

int be_worker() {
    const int file = open(getenv(file_name), O_WRONLY | O_APPEND);
    const pid_t own = getpid();
    preload::fabric::Control ready; // without it, the next worker would be started after a pause
    ready.kind = preload::fabric::Control::ready;
    if (send(preload::fabric::control_fd, &ready, sizeof(ready), 0) != sizeof(ready) ||
        write(file, &own, sizeof(own)) != sizeof(own)) {
        return 1;
    }
    pollfd one{preload::fabric::control_fd, 0, 0};
    (void)poll(&one, 1, -1); // until there is a POLLHUP
    return 0;
}

off_t recorded_bytes() {
    struct stat about {};
    EXPECT_EQ(stat(getenv(file_name), &about), 0);
    return about.st_size;
}

// A connection for which a worker has been started.
pid_t start_worker() {
    const off_t before = recorded_bytes();
    const Connected pair;
    for (int i = 0; i < patience && recorded_bytes() == before; ++i) {
        send_all(pair.a, "there");
        EXPECT_EQ(receive(pair.b, 5, MSG_WAITALL), std::string("there"));
        send_all(pair.b, "back");
        EXPECT_EQ(receive(pair.a, 4, MSG_WAITALL), std::string("back"));
        usleep(1000);
    }
    const int file = open(getenv(file_name), O_RDONLY);
    pid_t worker = -1;
    EXPECT_EQ(pread(file, &worker, sizeof(worker), before), static_cast<ssize_t>(sizeof(worker)));
    close(file);
    EXPECT_EQ(kill(worker, 0), 0);
    return worker;
}

// Neither running nor ended, of any kind.
bool has_any_child() {
    siginfo_t about{};
    return waitid(P_ALL, 0, &about, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0;
}

volatile sig_atomic_t told = 0;

void kill_worker(pid_t worker) {
    EXPECT_EQ(kill(worker, SIGKILL), 0);
    for (int left = patience; left > 0 && (kill(worker, 0) == 0 || has_any_child()); --left) {
        usleep(1000);
    }
    EXPECT_EQ(kill(worker, 0), -1);
    EXPECT(!has_any_child());
}

void expect_no_children() {
    EXPECT_EQ(told, 0);
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD);
}

void test_a_reaper_does_not_see_the_worker() {
    told = 0;
    const pid_t worker = start_worker();
    expect_no_children();
    kill_worker(worker);
}

#ifndef __SANITIZE_THREAD__
void test_a_reaper_of_all_its_children_is_not_given_the_worker() {
    const pid_t worker = start_worker();
    const pid_t child = fork();
    if (child == 0) {
        _exit(7);
    }
    EXPECT_EQ(wait(nullptr), child);
    alarm(20);
    EXPECT_EQ(wait(nullptr), -1);
    EXPECT_EQ(errno, ECHILD);
    alarm(0);
    kill_worker(worker);
}
#endif

// One after the other.
void test_a_reaper_does_not_see_the_ends_of_workers() {
    told = 0;
    for (int i = 0; i < 3; ++i) {
        kill_worker(start_worker());
        expect_no_children();
    }
}

// A pipe that was there before it.
void test_what_waits_for_the_worker_keeps_no_descriptor() {
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
    const pid_t worker = start_worker();
    close(ends[1]);
    pollfd one{ends[0], POLLIN, 0};
    EXPECT_EQ(poll(&one, 1, patience), 1);
    EXPECT_EQ(one.revents, POLLHUP);
    close(ends[0]);
    kill_worker(worker);
}

#ifndef __SANITIZE_THREAD__
// Of a server's child, which the server sees end if no other process is its parent.
void test_a_reaper_does_not_see_the_worker_of_a_child() {
    told = 0;
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
    const pid_t child = fork();
    if (child == 0) {
        try {
            kill_worker(start_worker());
            EXPECT_EQ(write(ends[1], "x", 1), 1);
            pause();
        } catch (const fabtests::Failure&) {
        }
        _exit(1);
    }
    close(ends[1]);
    char byte = 0;
    EXPECT_EQ(read(ends[0], &byte, 1), 1);
    EXPECT_EQ(told, 0);
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), 0);
    EXPECT_EQ(kill(child, SIGKILL), 0);
    EXPECT_EQ(wait(nullptr), child);
    EXPECT(!has_any_child());
    close(ends[0]);
}
#endif

} // namespace

int main(int argc, char** argv) {
    if (argc > 0 && strcmp(argv[0], worker_name) == 0) {
        return be_worker();
    }
    // It stays one when it executes itself again.
    if (getpid() != 1 && argc == 1) {
        if (prctl(PR_SET_CHILD_SUBREAPER, 1UL, 0UL, 0UL, 0UL) == 0) {
            execl("/proc/self/exe", argv[0], "again", nullptr);
        }
        return 1;
    }
    signal(SIGCHLD, [](int) { told = told + 1; });
    const CMUnitTest tests[] = {
        FABTEST(test_a_reaper_does_not_see_the_worker),
        FABTEST(test_a_reaper_does_not_see_the_ends_of_workers),
        FABTEST(test_what_waits_for_the_worker_keeps_no_descriptor),
#ifndef __SANITIZE_THREAD__ // which ends a process with threads that forks
        FABTEST(test_a_reaper_does_not_see_the_worker_of_a_child),
        FABTEST(test_a_reaper_of_all_its_children_is_not_given_the_worker),
#endif
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
