// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The library appends records to a file on the program's threads: beyond RLIMIT_FSIZE too, where the kernel raises
// SIGXFSZ. explain_test.sh runs it under the preload library, with a file for them.
#include <csignal>
#include <cstdlib>

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fabtests/common/test.hpp"
#include "preload/test/pair.hpp"

namespace {

using namespace preload_test;

bool limit_files_to(rlim_t bytes) {
    const rlimit limit{bytes, RLIM_INFINITY};
    return setrlimit(RLIMIT_FSIZE, &limit) == 0;
}

bool is_pending() {
    sigset_t pending;
    sigpending(&pending);
    return sigismember(&pending, SIGXFSZ) == 1;
}

void block() {
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &one, nullptr);
}

off_t size_of_records() {
    struct stat about {};
    return stat(getenv("RSPRELOAD_EXPLAIN"), &about) == 0 ? about.st_size : -1;
}

// It leaves records.
void use_connection() {
    const Connected one;
    send_all(one.a, "hello");
    EXPECT(receive(one.b, 5) == "hello");
}

// The wait status of a child that executes body.
template <class Body> int status_of_child(Body&& body) {
    const pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        _exit(body());
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return status;
}

volatile sig_atomic_t handled = 0;

void test_records_above_the_file_limit_end_no_program() {
    EXPECT_EQ(status_of_child([] {
                  if (!limit_files_to(0)) {
                      return 1;
                  }
                  use_connection();
                  return 0;
              }),
              0);
}

void test_records_above_the_file_limit_call_no_handler() {
    EXPECT_EQ(status_of_child([] {
                  signal(SIGXFSZ, [](int) { handled = 1; });
                  if (!limit_files_to(0)) {
                      return 1;
                  }
                  use_connection();
                  return handled != 0 ? 2 : 0;
              }),
              0);
}

void test_records_above_the_file_limit_leave_no_signal_pending() {
    EXPECT_EQ(status_of_child([] {
                  block();
                  if (!limit_files_to(0)) {
                      return 1;
                  }
                  use_connection();
                  return is_pending() ? 2 : 0;
              }),
              0);
}

void test_a_pending_signal_of_the_program_stays() {
    EXPECT_EQ(status_of_child([] {
                  block();
                  raise(SIGXFSZ);
                  if (!limit_files_to(0)) {
                      return 1;
                  }
                  use_connection();
                  return is_pending() ? 0 : 2;
              }),
              0);
}

void test_the_program_gets_the_signal_of_its_own_writes() {
    EXPECT_EQ(WTERMSIG(status_of_child([] {
                  if (!limit_files_to(0)) {
                      return 1;
                  }
                  use_connection();
                  FILE* file = tmpfile();
                  return file == nullptr || write(fileno(file), "x", 1) >= 0 ? 2 : 3;
              })),
              SIGXFSZ);
}

// It would be easy to raise no signal by writing nothing at all.
void test_records_are_written_below_the_file_limit() {
    const off_t before = size_of_records();
    EXPECT_EQ(status_of_child([] {
                  use_connection();
                  return 0;
              }),
              0);
    EXPECT(size_of_records() > before);
}

} // namespace

int main() {
    if (dlsym(RTLD_DEFAULT, "rspreload_path") == nullptr) {
        fprintf(stderr, "explain_test: run it by explain_test.sh, under the preload library\n");
        return 1;
    }
    const CMUnitTest tests[] = {
        FABTEST(test_records_above_the_file_limit_end_no_program),
        FABTEST(test_records_above_the_file_limit_call_no_handler),
        FABTEST(test_records_above_the_file_limit_leave_no_signal_pending),
        FABTEST(test_a_pending_signal_of_the_program_stays),
        FABTEST(test_the_program_gets_the_signal_of_its_own_writes),
        FABTEST(test_records_are_written_below_the_file_limit),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
