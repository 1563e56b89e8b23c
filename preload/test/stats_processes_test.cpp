// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Pages of counters of several processes under the preload library: of children and programs that they execute, of
// connections that are inherited or passed, and of processes that end.
#include <csignal>
#include <cstring>
#include <exception>
#include <functional>
#include <string>
#include <thread>

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fabtests/common/test.hpp"
#include "preload/test/pair.hpp"
#include "preload/test/stats_page.hpp"

namespace {

using namespace preload_test;

// A child that runs body, tells that it has, and waits to be killed.
class Child {
  public:
    explicit Child(const std::function<void()>& body) {
        int ready[2];
        EXPECT(pipe(ready) == 0);
        pid_ = fork();
        if (pid_ == 0) {
            char good = 'y';
            try {
                body();
            } catch (const std::exception& e) {
                fprintf(stderr, "# in the child: %s\n", e.what());
                good = 'n';
            }
            (void)!write(ready[1], &good, 1);
            for (;;) {
                pause();
            }
        }
        close(ready[1]);
        char good = 0;
        const bool is_ready = read(ready[0], &good, 1) == 1 && good == 'y';
        close(ready[0]);
        if (!is_ready) {
            end();
            throw fabtests::Failure("the child failed");
        }
    }
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;
    ~Child() { end(); }
    void end() {
        if (pid_ > 0) {
            kill(pid_, SIGKILL);
            waitpid(pid_, nullptr, 0);
            pid_ = -1;
        }
    }
    [[nodiscard]] pid_t pid() const { return pid_; }

  private:
    pid_t pid_ = -1;
};

void test_a_child_has_a_page_of_its_own() {
    const Pair pair;
    const uint64_t before = socket_of(page_of(getpid()), pair.a).counters.out.bytes;
    Child child([] {
        EXPECT(!has_page(getpid())); // nothing was moved
        static const Pair own;       // until it is killed
        move_bytes(own.a, own.b, 777);
        EXPECT(has_page(getpid()));
    });
    const ProcessView process = page_of(child.pid());
    EXPECT_EQ(process.sockets.size(), 2U);
    EXPECT(process.sockets[0].counters.out.bytes >= 777);
    EXPECT_EQ(socket_of(page_of(getpid()), pair.a).counters.out.bytes, before);
    EXPECT_EQ(segments_of(getpid()), 1U);
    child.end();
    pair.exchange();
    EXPECT_EQ(socket_of(page_of(getpid()), pair.a).counters.out.bytes, before + 1);
}

void test_a_child_counts_what_it_moves_on_an_inherited_connection() {
    const Pair pair;
    const uint64_t before = socket_of(page_of(getpid()), pair.a).counters.out.bytes;
    Child child([&] { move_bytes(pair.a, pair.b, 321); });
    EXPECT_EQ(socket_of(page_of(child.pid()), pair.a).counters.out.bytes, 321U);
    EXPECT_EQ(socket_of(page_of(getpid()), pair.a).counters.out.bytes, before);
}

void test_an_inherited_connection_is_described_once() {
    const Pair pair;
    constexpr int calls = 100;
    constexpr size_t size = 10;
    Child child([&] {
        fabtests::Threads threads;
        for (int i = 0; i < 2; ++i) {
            threads.start([&] {
                const std::string data(size, 'x');
                for (int j = 0; j < calls; ++j) {
                    EXPECT_EQ(send(pair.a, data.data(), data.size(), 0), size);
                }
            });
        }
        threads.join();
    });
    const ProcessView process = page_of(child.pid());
    EXPECT_EQ(process.sockets.size(), 1U);
    EXPECT_EQ(process.page.without_row, 0U);
    EXPECT_EQ(socket_of(process, pair.a).counters.out.calls, 2U * calls);
    EXPECT_EQ(socket_of(process, pair.a).counters.out.bytes, 2 * calls * size);
    EXPECT_EQ(socket_of(process, pair.a).counters.path, both_ways);
}

// Beyond the capacity of the page.
void test_a_connection_without_a_row_is_counted_once() {
    constexpr rlim_t needed = base::stats::max_rows + 500;
    rlimit limit{};
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_max < needed) {
        throw fabtests::Skip("a process may not have as many descriptors as the page has rows");
    }
    const Child child([&] {
        const rlimit raised{needed, limit.rlim_max};
        EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &raised), 0);
        for (uint32_t i = 0; i < base::stats::max_rows; ++i) {
            const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
            sockaddr_in address{};
            address.sin_family = AF_INET;
            address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 256 + i % 200); // which have ports of their own
            EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
            EXPECT_EQ(listen(fd, 1), 0);
        }
        const uint64_t before = page_of(getpid()).page.without_row;
        const Pair pair;
        const uint64_t after = page_of(getpid()).page.without_row;
        EXPECT_EQ(after, before + 3); // with the listener
        move_bytes(pair.a, pair.b, 1000);
        pair.exchange();
        EXPECT_EQ(page_of(getpid()).page.without_row, after);
    });
}

// A server that accepts, forks and closes: the child tells of the connection.
void test_a_connection_that_is_left_to_a_child_is_not_counted() {
    const uint64_t before = page_of(getpid()).page.ended.sockets;
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(listen(listener, 1), 0);
    sockaddr_in address{};
    socklen_t length = sizeof(address);
    EXPECT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length), 0);
    const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(client, reinterpret_cast<sockaddr*>(&address), length), 0);
    const int accepted = accept(listener, nullptr, nullptr);
    EXPECT_EQ(send(client, "x", 1, 0), 1);
    Child child([] {});
    close(accepted);
    close(listener);
    EXPECT_EQ(page_of(getpid()).page.ended.sockets, before);
    child.end();
    close(client);
    EXPECT_EQ(page_of(getpid()).page.ended.sockets, before + 1);
}

void test_a_killed_process_leaves_nothing() {
    pid_t pid = -1;
    {
        Child child([] { const Pair own; });
        pid = child.pid();
        EXPECT_EQ(segments_of(pid), 1U);
    }
    EXPECT_EQ(segments_of(pid), 0U);
    EXPECT(!has_page(pid));
}

void test_a_page_goes_with_exec() {
    int ready[2];
    EXPECT(pipe(ready) == 0);
    const pid_t pid = fork();
    if (pid == 0) {
        const Pair own;
        dup2(ready[1], STDOUT_FILENO);
        execlp("sh", "sh", "-c", "echo; exec sleep 60", nullptr);
        _exit(1);
    }
    close(ready[1]);
    char byte = 0;
    const ssize_t n = read(ready[0], &byte, 1);
    close(ready[0]);
    const size_t left = segments_of(pid);
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    EXPECT_EQ(n, 1);
    EXPECT_EQ(left, 0U);
}

// Sent by a child over a unix socket: this process shows the connection once it has moved bytes on it.
void test_a_passed_connection_is_shown_where_it_is_used() {
    int unix_pair[2];
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, unix_pair) == 0);
    Child child([&] {
        static const Pair pair; // until it is killed
        preload_test::pass(unix_pair[0], pair.a);
    });
    const int passed = preload_test::take_passed(unix_pair[1]);
    EXPECT_EQ(send(passed, std::string(55, 'x').data(), 55, 0), 55);
    const ProcessView process = page_of(getpid());
    EXPECT_EQ(socket_of(process, passed).counters.out.bytes, 55U);
    EXPECT(socket_of(process, passed).counters.role == base::stats::Role::inherited);
    for (const int fd : {passed, unix_pair[0], unix_pair[1]}) {
        close(fd);
    }
}

void test_a_page_is_read_while_threads_write_it() {
    const Child child([] {
        const Pair first; // so that there is a page
        for (int i = 0; i < 2; ++i) {
            std::thread([] { // until it is killed
                for (;;) {
                    const Pair pair;
                    for (int j = 0; j < 200; ++j) {
                        pair.exchange();
                    }
                }
            })
                .detach();
        }
    });
    uint64_t last = 0;
    constexpr int rounds = 300;
    constexpr int longest_ms = 3000; // in a minute, as a sanitizer takes for all, the child has used up its ports
    const auto start = fabtests::Clock::now();
    for (int i = 0; i < rounds && (last == 0 || fabtests::milliseconds_since(start) < longest_ms); ++i) {
        const ProcessView process = page_of(child.pid());
        EXPECT(process.page.ended.sockets >= last);
        EXPECT(process.sockets.size() <= 16);
        last = process.page.ended.sockets;
        usleep(1000);
    }
    EXPECT(last != 0);
}

const CMUnitTest tests[] = {
    FABTEST(test_a_child_has_a_page_of_its_own),
    FABTEST(test_a_child_counts_what_it_moves_on_an_inherited_connection),
    FABTEST(test_an_inherited_connection_is_described_once),
    FABTEST(test_a_connection_without_a_row_is_counted_once),
    FABTEST(test_a_connection_that_is_left_to_a_child_is_not_counted),
    FABTEST(test_a_killed_process_leaves_nothing),
    FABTEST(test_a_page_goes_with_exec),
    FABTEST(test_a_passed_connection_is_shown_where_it_is_used),
    FABTEST(test_a_page_is_read_while_threads_write_it),
};

} // namespace

int main() {
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
