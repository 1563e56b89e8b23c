// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The library appends records to a file on the program's threads: beyond RLIMIT_FSIZE too, where the kernel raises
// SIGXFSZ. They have all bytes of the program, whichever path these took, and once. explain_test.sh runs it under the
// preload library, with a file for them.
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <vector>

#include <fcntl.h>

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

// What a record says of one end.
struct Record {
    unsigned upgrades = 0;
    unsigned returns = 0;
    uint64_t sent = 0;
    uint64_t received = 0;
    std::string reason;
};

// By the role, of sockets that were closed since the file had `begin` bytes. The columns are in rspreload-ofi(7).
std::map<std::string, Record> records_since(off_t begin) {
    constexpr size_t columns = 13;
    std::ifstream file(getenv("RSPRELOAD_EXPLAIN"));
    file.seekg(begin);
    std::map<std::string, Record> found;
    for (std::string line; std::getline(file, line);) {
        std::vector<std::string> fields;
        std::istringstream of_line(line);
        for (std::string field; std::getline(of_line, field, '\t');) {
            fields.push_back(field);
        }
        EXPECT_EQ(fields.size(), columns);
        found[fields[3]] = {static_cast<unsigned>(std::stoul(fields[7])), static_cast<unsigned>(std::stoul(fields[8])),
                            std::stoull(fields[10]), std::stoull(fields[11]), fields[12]};
    }
    return found;
}

// The records of a connection on which use() has sent so many bytes from a, and from b, all of which were received.
template <class Use> std::map<std::string, Record> expect_recorded(Use&& use) {
    const off_t begin = size_of_records();
    uint64_t by_a = 0;
    uint64_t by_b = 0;
    {
        const Connected pair;
        use(pair, by_a, by_b);
    }
    auto records = records_since(begin);
    EXPECT_EQ(records["connect"].sent, by_a);
    EXPECT_EQ(records["connect"].received, by_b);
    EXPECT_EQ(records["accept"].sent, by_b);
    EXPECT_EQ(records["accept"].received, by_a);
    return records;
}

void move(int from, int to, size_t size, uint64_t& sent) {
    send_all(from, std::string(size, 'm'));
    EXPECT_EQ(receive(to, size, MSG_WAITALL).size(), size);
    sent += size;
}

// Upgraded, by bytes that are counted.
void upgrade(const Connected& pair, uint64_t& by_a, uint64_t& by_b) {
    constexpr int patience = 5000;
    for (int i = 0; i < patience && (path_of(pair.a) != 3 || path_of(pair.b) != 3); ++i) {
        move(pair.a, pair.b, 1, by_a);
        move(pair.b, pair.a, 1, by_b);
        usleep(1000);
    }
    EXPECT_EQ(path_of(pair.a), 3);
    EXPECT_EQ(path_of(pair.b), 3);
}

// Only the kernel has the option.
void leave_to_kernel(int fd) {
    constexpr int low = 2;
    EXPECT_EQ(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof(low)), 0);
}

void test_bytes_are_recorded_of_a_connection_that_stays_with_the_kernel() {
    expect_recorded([](const Connected& pair, uint64_t& by_a, uint64_t& by_b) {
        leave_to_kernel(pair.a);
        leave_to_kernel(pair.b);
        move(pair.a, pair.b, 5000, by_a);
        move(pair.b, pair.a, 300, by_b);
    });
}

// Else each of two connections would move bytes past the other.
void test_a_connection_that_is_passed_to_its_own_process_stays_one() {
    (void)expect_recorded([](const Connected& pair, uint64_t& by_a, uint64_t& by_b) {
        const int again = preload_test::passed(pair.b);
        for (const int fd : {pair.b, again}) {
            send_all(pair.a, "by a");
            EXPECT_EQ(receive(fd, 4), "by a");
            send_all(fd, "by b");
            EXPECT_EQ(receive(pair.a, 4), "by b");
        }
        by_a = by_b = 8;
        close(again);
    });
}

void test_bytes_are_recorded_behind_a_return() {
    expect_recorded([](const Connected& pair, uint64_t& by_a, uint64_t& by_b) {
        move(pair.b, pair.a, 700, by_b);
        upgrade(pair, by_a, by_b);
        move(pair.a, pair.b, 5000, by_a);
        move(pair.b, pair.a, 300, by_b);
        leave_to_kernel(pair.a);
        for (int i = 0; i < 20; ++i) { // the first of them are in front of its end
            move(pair.a, pair.b, 7000, by_a);
            move(pair.b, pair.a, 900, by_b);
        }
    });
}

// Unread bytes of the ring are sent again, and so are those in front of it that the library has taken.
void test_bytes_that_are_sent_again_are_recorded_once() {
    auto records = expect_recorded([](const Connected& pair, uint64_t& by_a, uint64_t& by_b) {
        constexpr size_t unread = 5000;
        upgrade(pair, by_a, by_b);
        send_all(pair.a, std::string(unread, 'u'));
        by_a += unread;
        std::array<int, 2> ends{};
        EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
        pass(ends[0], pair.b);
        EXPECT_EQ(receive(pair.b, unread, MSG_WAITALL).size(), unread);
        move(pair.b, pair.a, 100, by_b);
        close(ends[0]); // and the descriptor, which nobody has received
        close(ends[1]);
    });
    EXPECT_EQ(records["connect"].returns, 1);
}

// Both ends send more than a ring takes before they read, until the library keeps to the kernel.
void test_bytes_are_recorded_of_ends_that_send_more_than_a_ring_takes() {
    auto records = expect_recorded([](const Connected& pair, uint64_t& by_a, uint64_t& by_b) {
        constexpr size_t burst = 400000;
        constexpr int bursts = 8;
        upgrade(pair, by_a, by_b);
        for (int i = 0; i < bursts; ++i) {
            send_all(pair.a, std::string(burst, 'a'));
            send_all(pair.b, std::string(burst, 'b'));
            EXPECT(receive(pair.a, burst, MSG_WAITALL) == std::string(burst, 'b'));
            EXPECT(receive(pair.b, burst, MSG_WAITALL) == std::string(burst, 'a'));
            by_a += burst;
            by_b += burst;
        }
    });
    EXPECT((records["connect"].reason + records["accept"].reason).find("more was sent than a ring takes") !=
           std::string::npos);
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
        FABTEST(test_bytes_are_recorded_of_a_connection_that_stays_with_the_kernel),
        FABTEST(test_a_connection_that_is_passed_to_its_own_process_stays_one),
        FABTEST(test_bytes_are_recorded_behind_a_return),
        FABTEST(test_bytes_that_are_sent_again_are_recorded_once),
        FABTEST(test_bytes_are_recorded_of_ends_that_send_more_than_a_ring_takes),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
