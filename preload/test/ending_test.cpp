// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A stream that has ended, and whose reader hands it over before it has read all; a process that closes what another
// one still uses. ending_test.sh runs it.
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "preload/test/pair.hpp"

namespace {

using preload_test::Pair;
using preload_test::passed;

// So much is sent, and of that so much unread.
struct Sent {
    std::string sent;
    std::string read;
};

Sent fill(const Pair& pair, size_t unread) {
    Sent result;
    for (unsigned i = 0; result.sent.size() - result.read.size() < unread; ++i) {
        const std::string some(4096, static_cast<char>('a' + i % 26));
        const ssize_t n = send(pair.a, some.data(), some.size(), MSG_DONTWAIT);
        if (n > 0) {
            result.sent.append(some, 0, static_cast<size_t>(n));
            continue;
        }
        // A ring grows once some of it was read.
        EXPECT_EQ(errno, EAGAIN);
        std::string got(8192, '\0');
        const ssize_t taken = recv(pair.b, got.data(), got.size(), 0);
        EXPECT(taken > 0);
        result.read.append(got, 0, static_cast<size_t>(taken));
    }
    return result;
}

std::string rest_of(int fd) {
    std::string text;
    std::array<char, 10000> some{};
    ssize_t n = 0;
    while ((n = recv(fd, some.data(), some.size(), 0)) > 0) {
        text.append(some.data(), static_cast<size_t>(n));
    }
    EXPECT_EQ(n, 0);
    return text;
}

void expect_all_after_shutdown(size_t unread) {
    const Pair pair;
    const Sent before = fill(pair, unread);
    EXPECT_EQ(shutdown(pair.a, SHUT_WR), 0);
    const int made = passed(pair.b);
    EXPECT(before.read + rest_of(made) == before.sent);
    EXPECT_EQ(send(made, "back", 4, 0), 4); // the other direction goes on
    std::array<char, 4> back{};
    EXPECT_EQ(recv(pair.a, back.data(), back.size(), MSG_WAITALL), 4);
    close(made);
}

void test_little_unread_is_handed_over_after_the_end() { expect_all_after_shutdown(5000); }
void test_much_unread_is_handed_over_after_the_end() { expect_all_after_shutdown(200000); }

// It has had the time to say so to the peer, too.
void await_sleep(pid_t process) {
    constexpr int in_a_row = 5;
    for (int asleep = 0; asleep < in_a_row; usleep(10000)) {
        std::ifstream file("/proc/" + std::to_string(process) + "/stat");
        std::string text;
        std::getline(file, text);
        const size_t name_ends = text.rfind(')');
        EXPECT(name_ends != std::string::npos);
        EXPECT(text[name_ends + 2] != 'Z'); // else it would never sleep
        asleep = text[name_ends + 2] == 'S' ? asleep + 1 : 0;
    }
}

void test_closing_a_copy_leaves_the_sleep_of_another_process_alone() {
    Pair pair;
    constexpr size_t size = 20000000; // more than a ring and TCP take
    const pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); // also if the test fails
        const std::string bytes(size, 'c');
        _exit(send(pair.a, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(size) ? 0 : 1);
    }
    await_sleep(child);
    EXPECT_EQ(close(pair.a), 0);
    size_t got = 0;
    std::array<char, 10000> some{};
    for (ssize_t n = 1; n > 0; got += static_cast<size_t>(n)) {
        preload_test::events_of(pair.b, POLLIN);
        n = recv(pair.b, some.data(), some.size(), 0);
        EXPECT(n >= 0);
    }
    EXPECT_EQ(got, size);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}

// One thread has the connection to read, and another one a duplicate to write, and both end at the same time. Each
// close may find that there is another fd, but one of them is the last.
void test_one_of_two_fds_that_threads_close_at_once_is_the_last() {
    constexpr int rounds = 200;
    int not_reset = 0;
    for (int i = 0; i < rounds; ++i) {
        Pair pair;
        preload_test::send_all(pair.a, "unread");
        std::atomic<int> ready{0};
        const auto close_one = [&](int fd) {
            ready.fetch_add(1);
            while (ready.load() != 2) {
                sched_yield();
            }
            close(fd);
        };
        std::thread other(close_one, dup(pair.b));
        close_one(std::exchange(pair.b, -1));
        other.join();
        char byte = 0;
        not_reset += recv(pair.a, &byte, 1, 0) == -1 && errno == ECONNRESET ? 0 : 1;
    }
    EXPECT_EQ(not_reset, 0);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_little_unread_is_handed_over_after_the_end),
        FABTEST(test_much_unread_is_handed_over_after_the_end),
        FABTEST(test_closing_a_copy_leaves_the_sleep_of_another_process_alone),
        FABTEST(test_one_of_two_fds_that_threads_close_at_once_is_the_last),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
