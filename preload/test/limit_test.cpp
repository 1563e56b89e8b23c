// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The limit of descriptors is the program's own, although the library uses numbers above it. limit_test.sh runs it.
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include <sys/resource.h>
#include <sys/wait.h>

#include "preload/test/pair.hpp"

namespace {

using preload_test::Connected;

constexpr rlim_t soft = 1024;

// The result, or -errno.
ssize_t result(ssize_t n) { return n < 0 ? -errno : n; }

void exchange(int a, int b) {
    char byte = 'x';
    EXPECT_EQ(result(send(a, &byte, 1, 0)), 1);
    EXPECT_EQ(result(recv(b, &byte, 1, 0)), 1);
    EXPECT_EQ(result(send(b, &byte, 1, 0)), 1);
    EXPECT_EQ(result(recv(a, &byte, 1, 0)), 1);
}

// Connections that are upgraded, so that the library makes descriptors, on other threads.
class Others {
  public:
    Others() {
        for (int i = 0; i < 2; ++i) {
            threads_.emplace_back([this] {
                while (!enough_) {
                    const Connected pair;
                    for (int k = 0; k < 30; ++k) {
                        exchange(pair.a, pair.b);
                    }
                }
            });
        }
    }
    Others(const Others&) = delete;
    Others& operator=(const Others&) = delete;
    ~Others() {
        enough_ = true;
        for (std::thread& one : threads_) {
            one.join();
        }
    }

  private:
    std::atomic<bool> enough_{false};
    std::vector<std::thread> threads_;
};

rlimit limit_now() {
    rlimit limit{};
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    return limit;
}

int set_up(void** /*state*/) {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = soft;
    return limit.rlim_max > soft ? setrlimit(RLIMIT_NOFILE, &limit) : -1;
}

void test_the_program_sees_its_own_limit() {
    const Others others;
    for (int i = 0; i < 300000; ++i) {
        EXPECT_EQ(limit_now().rlim_cur, soft);
    }
    rlimit limit{};
    for (int i = 0; i < 100000; ++i) {
        EXPECT_EQ(prlimit(getpid(), RLIMIT_NOFILE, nullptr, &limit), 0);
        EXPECT_EQ(limit.rlim_cur, soft);
    }
}

void test_what_the_program_sets_is_not_undone() {
    const rlimit first = limit_now();
    {
        const Others others;
        for (int i = 0; i < 50000; ++i) {
            rlimit other = first;
            other.rlim_cur = soft - static_cast<rlim_t>(i % 2);
            EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &other), 0);
            sched_yield();
            EXPECT_EQ(limit_now().rlim_cur, other.rlim_cur);
        }
        EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &first), 0);
    }
    EXPECT_EQ(limit_now().rlim_cur, first.rlim_cur);
}

#ifndef __SANITIZE_THREAD__ // which ends a process with threads that forks
void test_children_inherit_the_programs_limit() {
    const Others others;
    for (int i = 0; i < 300; ++i) {
        const pid_t child = fork();
        if (child == 0) {
            rlimit limit{};
            getrlimit(RLIMIT_NOFILE, &limit);
            _exit(limit.rlim_cur == soft ? 0 : 1);
        }
        int status = -1;
        EXPECT_EQ(waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0);
        if (i % 4 == 0) {
            FILE* said = popen("ulimit -n", "r");
            char text[32] = "";
            EXPECT(said != nullptr && fgets(text, sizeof(text), said) != nullptr);
            EXPECT_EQ(pclose(said), 0);
            EXPECT_EQ(std::string(text), std::to_string(soft) + "\n");
            EXPECT_EQ(system("test $(ulimit -n) = 1024"), 0);
        }
    }
}
#endif

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_the_program_sees_its_own_limit),
        FABTEST(test_what_the_program_sets_is_not_undone),
#ifndef __SANITIZE_THREAD__
        FABTEST(test_children_inherit_the_programs_limit),
#endif
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, set_up, nullptr);
}
