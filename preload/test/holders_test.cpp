// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// How many processes hold a connection: one that is left alone with it is upgraded, and its upgraded connections go on
// without frames, however the others have ended, or if they never began. holders_test.sh runs it.
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "preload/test/child.hpp"
#include "preload/test/pair.hpp"
#include "rsockets/test/asleep.hpp"

namespace {

using preload_test::await_end;
using preload_test::Connected;
using preload_test::in_child;
using preload_test::Pair;
using preload_test::path_of;

// A sanitizer does not survive that a process with threads forks.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void test_a_fork_that_fails_makes_no_holder() {
    in_child([] {
        constexpr uid_t nobody = 65534; // no limit applies to root
        if (geteuid() == 0 && (setresgid(nobody, nobody, nobody) != 0 || setresuid(nobody, nobody, nobody) != 0)) {
            return 1;
        }
        const Pair before; // the library's thread is there from now on
        const Connected young;
        const rlimit none{0, 0};
        if (setrlimit(RLIMIT_NPROC, &none) != 0) {
            return 2;
        }
        const pid_t child = fork();
        if (child == 0) {
            _exit(0);
        }
        if (child > 0) {
            return 3;
        }
        return young.is_upgraded_soon() ? 0 : 4;
    });
}

void test_the_parent_of_a_daemon_is_no_holder() {
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
    const pid_t child = fork();
    if (child == 0) {
        const Connected both;
        if (daemon(1, 1) != 0) {
            _exit(1);
        }
        const char good = both.is_upgraded_soon() ? 'y' : 'n';
        (void)!write(ends[1], &good, 1);
        _exit(0);
    }
    close(ends[1]);
    await_end(child);
    char good = 0;
    EXPECT_EQ(read(ends[0], &good, 1), 1);
    EXPECT_EQ(good, 'y');
    close(ends[0]);
}

void test_a_child_that_quits_at_once_is_no_holder() {
    const Connected both;
    const pid_t child = fork();
    if (child == 0) {
        quick_exit(0);
    }
    await_end(child);
    EXPECT(both.is_upgraded_soon());
}

// Until the process has ended, or was asleep in many looks in a row: it may sleep for a lock on its way.
void await_asleep(pid_t process) {
    constexpr int looks = 20;
    for (int asleep = 0; asleep < looks;) {
        std::ifstream file("/proc/" + std::to_string(process) + "/stat");
        const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
        const size_t at = text.rfind(')');
        if (at == std::string::npos || text.size() <= at + 2 || text[at + 2] == 'Z') {
            return;
        }
        asleep = text[at + 2] == 'S' ? asleep + 1 : 0;
        usleep(1000); // nothing tells of it
    }
}

// Children that no handler of pthread_atfork(3) runs for: the last holder of a connection goes on with it.
template <class Make> void go_on_in_child(Make&& make) {
    Pair pair;
    const pid_t child = make();
    if (child == 0) {
        close(pair.a);
        char byte = 0;
        _exit(recv(pair.b, &byte, 1, 0) == 1 && byte == 'y' && send(pair.b, "z", 1, 0) == 1 ? 0 : 1);
    }
    await_asleep(child);
    close(std::exchange(pair.b, -1));
    EXPECT_EQ(send(pair.a, "y", 1, 0), 1);
    char byte = 0;
    EXPECT_EQ(recv(pair.a, &byte, 1, 0), 1);
    EXPECT_EQ(byte, 'z');
    await_end(child);
    EXPECT_EQ(recv(pair.a, &byte, 1, 0), 0);
}

void test_a_child_of_raw_fork_goes_on_with_a_connection() {
    go_on_in_child([] { return _Fork(); });
    go_on_in_child([] { return static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr)); });
}

void test_a_child_of_clone_goes_on_with_a_connection() {
    Pair pair;
    std::vector<char> stack(size_t{64} << 10);
    const auto run = [](void* of) {
        const auto* both = static_cast<const Pair*>(of);
        close(both->a);
        char byte = 0;
        return recv(both->b, &byte, 1, 0) == 1 && byte == 'y' && send(both->b, "z", 1, 0) == 1 ? 0 : 1;
    };
    const pid_t child = clone(run, stack.data() + stack.size(), SIGCHLD, &pair);
    await_asleep(child);
    close(std::exchange(pair.b, -1));
    EXPECT_EQ(send(pair.a, "y", 1, 0), 1);
    char byte = 0;
    EXPECT_EQ(recv(pair.a, &byte, 1, 0), 1);
    EXPECT_EQ(byte, 'z');
    await_end(child);
    EXPECT_EQ(recv(pair.a, &byte, 1, 0), 0);
}

// A byte each way; the number of what has failed.
int exchange_by(int a, int b) {
    constexpr int patience_ms = 10000;
    int step = 1;
    for (const auto& [from, to] : {std::pair{a, b}, std::pair{b, a}}) {
        char byte = static_cast<char>('a' + step);
        pollfd one{to, POLLIN, 0};
        if (send(from, &byte, 1, MSG_DONTWAIT) != 1) {
            return step;
        }
        if (poll(&one, 1, patience_ms) != 1) {
            return step + 1;
        }
        if (recv(to, &byte, 1, MSG_DONTWAIT) != 1 || byte != static_cast<char>('a' + step)) {
            return step + 2;
        }
        step += 3;
    }
    return 0;
}

// The library learns of it when the number comes again.
long close_past_library(int fd) {
    long result = SYS_close;
    __asm__ volatile("syscall" : "+a"(result) : "D"(fd) : "rcx", "r11", "memory");
    return result;
}

void test_a_child_has_a_connection_one_of_whose_fds_was_closed_past_the_library() {
    const Pair pair;
    const int other = dup(pair.b);
    EXPECT_EQ(close_past_library(pair.b), 0);
    EXPECT_EQ(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), pair.b);
    in_child([&] { return exchange_by(pair.a, other); });
    EXPECT_EQ(exchange_by(pair.a, other), 0);
    EXPECT_EQ(path_of(other), 3);
    close(other);
    char byte = 0;
    EXPECT_EQ(recv(pair.a, &byte, 1, 0), 0);
}

// Whatever that thread has done of it when the child begins: the connection goes by this fd until then.
void test_a_child_has_a_connection_one_of_whose_fds_another_thread_closes() {
    constexpr int children = 500;
    Pair pair;
    int kept = dup(pair.b);
    std::atomic<int> to_close{-1};
    std::atomic<bool> over{false};
    std::thread closer([&] {
        while (!over) {
            if (to_close.load() >= 0) {
                close(to_close);
                to_close = -1;
            }
        }
    });
    const auto stop = [&] {
        over = true;
        closer.join();
    };
    try {
        for (int i = 0; i < children; ++i) {
            to_close = pair.b;
            in_child([&] { return exchange_by(pair.a, kept); });
            while (to_close.load() >= 0) {
                sched_yield();
            }
            pair.b = kept;
            kept = dup(pair.b);
        }
    } catch (...) {
        stop();
        throw;
    }
    stop();
    close(kept);
    EXPECT(pair.is_upgraded_soon());
    const pid_t child = fork();
    if (child == 0) {
        close(pair.b); // its only one
        _exit(0);
    }
    await_end(child);
    EXPECT_EQ(exchange_by(pair.a, pair.b), 0);
    EXPECT_EQ(shutdown(pair.b, SHUT_WR), 0);
    char byte = 0;
    EXPECT_EQ(recv(pair.a, &byte, 1, 0), 0);
}

// A child that makes the connection leave the path and return to it is the last one that its peer knows of.
void test_a_peer_asks_the_process_that_is_left() {
    Pair pair;
    in_child([&] {
        const std::vector<char> bytes(size_t{16} << 10);
        size_t sent = 0;
        for (ssize_t n = 0; (n = send(pair.b, bytes.data(), bytes.size(), MSG_DONTWAIT)) > 0;) {
            sent += static_cast<size_t>(n);
        }
        while (path_of(pair.b) == 3) {
            usleep(1000); // until the full ring was left
        }
        for (std::vector<char> in(sent); sent != 0;) {
            const ssize_t n = recv(pair.a, in.data(), sent, 0);
            if (n <= 0) {
                return 1;
            }
            sent -= static_cast<size_t>(n);
        }
        return pair.is_upgraded_soon() ? 0 : 2;
    });
    const int made = preload_test::passed(pair.a); // the peer has to return before that
    close(std::exchange(pair.a, made));
    EXPECT_EQ(exchange_by(pair.a, pair.b), 0);
}

// A process in another PID namespace cannot see whether the owner of a lock has ended, nor be seen.
template <class Make> void share_with_namespace(Make&& make) {
    constexpr int times = 20000;
    constexpr int no_namespace = 77;
    const pid_t tester = fork();
    if (tester == 0) {
        const Pair pair;
        std::atomic<long> of_child{0};
        std::atomic<long> others{0};
        std::thread reader([&] {
            std::vector<char> bytes(size_t{64} << 10);
            for (ssize_t n = 0; (n = recv(pair.b, bytes.data(), bytes.size(), 0)) > 0;) {
                const auto found = std::count(bytes.begin(), bytes.begin() + n, 'c');
                of_child += found;
                others += n - found;
            }
        });
        const pid_t child = make();
        if (child < 0) {
            _exit(no_namespace);
        }
        if (child == 0) {
            int sent = 0;
            while (sent < times && send(pair.a, "c", 1, 0) == 1) {
                ++sent;
            }
            _exit(sent == times ? 0 : 1);
        }
        const std::vector<char> bytes(size_t{32} << 10, 'p');
        long sent = 0;
        int status = -1;
        while (waitpid(child, &status, WNOHANG) == 0) {
            sent += std::max(send(pair.a, bytes.data(), bytes.size(), 0), ssize_t{0});
        }
        const bool returned = path_of(pair.a) == 0 && path_of(pair.b) == 0;
        shutdown(pair.a, SHUT_WR);
        reader.join();
        _exit(status != 0 ? 1 : of_child != times || others != sent ? 2 : returned ? 0 : 3);
    }
    int status = -1;
    EXPECT_EQ(waitpid(tester, &status, 0), tester);
    EXPECT(WIFEXITED(status));
    if (WEXITSTATUS(status) == no_namespace) {
        throw fabtests::Skip("no PID namespace can be made");
    }
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

void test_a_child_in_a_pid_namespace_returns_connections() {
    share_with_namespace([] { return unshare(CLONE_NEWPID) == 0 ? fork() : -1; });
    share_with_namespace([] {
        return static_cast<pid_t>(syscall(SYS_clone, SIGCHLD | CLONE_NEWPID, nullptr, nullptr, nullptr, nullptr));
    });
}

#endif

struct Receiver {
    int fd;
    std::atomic<long> thread{0};
};

// The call that it is cancelled in moves no bytes any more.
void test_a_thread_that_is_canceled_in_recv_lets_its_connection_upgrade() {
    const Connected both;
    Receiver receiver{both.b};
    pthread_t thread{};
    const auto receive = [](void* argument) -> void* {
        auto* own = static_cast<Receiver*>(argument);
        char byte = 0;
        own->thread = gettid();
        (void)recv(own->fd, &byte, 1, 0);
        return nullptr;
    };
    EXPECT_EQ(pthread_create(&thread, nullptr, receive, &receiver), 0);
    while (receiver.thread == 0) {
        sched_yield();
    }
    await_thread_asleep(receiver.thread);
    EXPECT_EQ(pthread_cancel(thread), 0);
    void* result = nullptr;
    EXPECT_EQ(pthread_join(thread, &result), 0);
    EXPECT(result == PTHREAD_CANCELED);
    EXPECT(both.is_upgraded_soon());
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        FABTEST(test_a_fork_that_fails_makes_no_holder),
        FABTEST(test_the_parent_of_a_daemon_is_no_holder),
        FABTEST(test_a_child_that_quits_at_once_is_no_holder),
        FABTEST(test_a_child_of_raw_fork_goes_on_with_a_connection),
        FABTEST(test_a_child_of_clone_goes_on_with_a_connection),
        FABTEST(test_a_child_has_a_connection_one_of_whose_fds_was_closed_past_the_library),
        FABTEST(test_a_child_has_a_connection_one_of_whose_fds_another_thread_closes),
        FABTEST(test_a_peer_asks_the_process_that_is_left),
        FABTEST(test_a_child_in_a_pid_namespace_returns_connections),
#endif
        FABTEST(test_a_thread_that_is_canceled_in_recv_lets_its_connection_upgrade),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
