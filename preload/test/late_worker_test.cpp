// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A connection that is closed, or whose program ends, while the fabric's worker loads libfabric: the end is not late.
// late_worker_test.sh runs it; the worker, which is never ready, is this program as well.
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "preload/fabric/control.hpp"
#include "preload/test/pair.hpp"

namespace {

using preload_test::Connected;
using preload_test::events_of;
using preload_test::receive;
using preload_test::send_all;

constexpr const char* worker_name = "rspreload-fabric";
constexpr const char* file_name = "LATE_WORKER_FILE"; // not empty once the worker runs

struct Worker { // what it tells
    pid_t session;
    pid_t group;
    pid_t process;
};

// Keeps what it is given until the program ends.
int be_worker() {
    const int file = open(getenv(file_name), O_WRONLY | O_APPEND);
    const Worker own{getsid(0), getpgrp(), getpid()};
    if (write(file, &own, sizeof(own)) != sizeof(own)) {
        return 1;
    }
    pollfd one{preload::fabric::control_fd, 0, 0};
    (void)poll(&one, 1, -1); // until there is a POLLHUP
    return 0;
}

// Both ends are worth an upgrade, and wait for the worker.
struct Waiting : Connected {
    Waiting() {
        constexpr int patience = 20000;
        constexpr int some = 100;
        struct stat file {};
        for (int i = 0; i < some || (i < patience && file.st_size == 0); ++i) {
            send_all(a, "there");
            EXPECT_EQ(receive(b, 5, MSG_WAITALL), std::string("there"));
            send_all(b, "back");
            EXPECT_EQ(receive(a, 4, MSG_WAITALL), std::string("back"));
            usleep(1000);
            EXPECT_EQ(stat(getenv(file_name), &file), 0);
        }
        EXPECT(file.st_size != 0);
    }
};

void test_the_end_is_not_late() {
    Waiting pair;
    send_all(pair.a, "last");
    EXPECT_EQ(close(std::exchange(pair.a, -1)), 0);
    EXPECT_EQ(receive(pair.b, 100, MSG_WAITALL), std::string("last"));
    EXPECT(events_of(pair.b, POLLRDHUP) & POLLRDHUP);
}

void test_a_close_with_bytes_unread_is_a_reset() {
    Waiting pair;
    send_all(pair.b, "unread");
    EXPECT_EQ(events_of(pair.a, POLLIN) & POLLIN, POLLIN);
    EXPECT_EQ(close(std::exchange(pair.a, -1)), 0);
    char byte = 0;
    EXPECT_EQ(recv(pair.b, &byte, 1, 0), -1);
    EXPECT_EQ(errno, ECONNRESET);
}

void test_an_abortive_close_is_a_reset() {
    Waiting pair;
    const linger reset{1, 0};
    EXPECT_EQ(setsockopt(pair.a, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
    EXPECT_EQ(close(std::exchange(pair.a, -1)), 0);
    char byte = 0;
    EXPECT_EQ(recv(pair.b, &byte, 1, 0), -1);
    EXPECT_EQ(errno, ECONNRESET);
}

// A terminal's signals are for the program only. A session of its own would be scheduled as a group (sched(7),
// autogroup), and on a busy machine wait for seconds.
void test_a_worker_has_a_process_group_of_its_own_and_no_session() {
    const Waiting pair;
    const int file = open(getenv(file_name), O_RDONLY);
    Worker worker{};
    EXPECT_EQ(read(file, &worker, sizeof(worker)), static_cast<ssize_t>(sizeof(worker)));
    close(file);
    EXPECT_EQ(worker.session, getsid(0));
    EXPECT_EQ(worker.group, worker.process);
}

#ifndef __SANITIZE_THREAD__ // which ends a process with threads that forks
// A child that has it keeps it open; it is killed, and can tell nobody.
void test_the_last_process_ends_it() {
    Waiting pair;
    std::array<int, 2> go{};
    EXPECT_EQ(pipe(go.data()), 0);
    const pid_t child = fork();
    if (child == 0) {
        char byte = 0;
        close(go[1]);
        if (read(go[0], &byte, 1) == 0 && send(pair.a, "child", 5, 0) == 5) {
            raise(SIGKILL);
        }
        _exit(1);
    }
    EXPECT_EQ(close(std::exchange(pair.a, -1)), 0);
    pollfd one{pair.b, POLLIN | POLLRDHUP, 0};
    EXPECT_EQ(poll(&one, 1, 100), 0);
    close(go[1]);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT(WIFSIGNALED(status));
    EXPECT_EQ(receive(pair.b, 6, MSG_WAITALL), std::string("child"));
    close(go[0]);
}
#endif

} // namespace

int main(int argc, char** argv) {
    if (argc > 0 && strcmp(argv[0], worker_name) == 0) {
        return be_worker();
    }
    const CMUnitTest tests[] = {
        FABTEST(test_the_end_is_not_late),
        FABTEST(test_a_close_with_bytes_unread_is_a_reset),
        FABTEST(test_an_abortive_close_is_a_reset),
        FABTEST(test_a_worker_has_a_process_group_of_its_own_and_no_session),
#ifndef __SANITIZE_THREAD__
        FABTEST(test_the_last_process_ends_it),
#endif
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
