// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What a process has besides its connections, while these are upgraded: limits, descriptors, small stacks, signals,
// cancellation. process_test.sh runs it under the preload library. Both ends of a connection are in this process.
#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fabtests/common/test.hpp"
#include "preload/test/child.hpp"
#include "preload/test/pair.hpp"

namespace {

using namespace preload_test;

[[maybe_unused]] std::vector<int> open_descriptors() {
    std::vector<int> found;
    DIR* all = opendir("/proc/self/fd");
    while (const dirent* entry = readdir(all)) {
        if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(all)) {
            found.push_back(atoi(entry->d_name));
        }
    }
    closedir(all);
    return found;
}

// Children are made by one thread while others make connections, of which the children know nothing.
[[maybe_unused]] void test_children_are_made_while_connections_begin() {
    constexpr int children = 1500;
    std::atomic<bool> enough{false};
    std::atomic<int> failed{0}; // errno
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
        threads.emplace_back([&] {
            while (!enough && failed == 0) {
                const Connected pair;
                for (int k = 0; k < 60 && failed == 0; ++k) {
                    char byte = 'x';
                    const int from = k % 2 == 0 ? pair.a : pair.b;
                    const int to = k % 2 == 0 ? pair.b : pair.a;
                    if (send(from, &byte, 1, MSG_NOSIGNAL) != 1 || recv(to, &byte, 1, 0) != 1) {
                        failed = errno != 0 ? errno : -1;
                    }
                }
            }
        });
    }
    for (int i = 0; i < children && failed == 0; ++i) {
        const pid_t child = fork();
        if (child == 0) {
            _exit(0);
        }
        int status = -1;
        EXPECT_EQ(waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0);
    }
    enough = true;
    for (std::thread& one : threads) {
        one.join();
    }
    EXPECT_EQ(failed.load(), 0);
}

// As a server with threads, each of which accepts, and has a child serve what it has accepted.
[[maybe_unused]] void test_threads_fork_children_that_serve_their_connections() {
    constexpr int connections = 100;
    constexpr int exchanges = 60;
    std::atomic<int> failed{0};
    const auto exchange = [](int from, int to, int k) {
        const char sent = static_cast<char>('a' + k % 26);
        char got = 0;
        return send(from, &sent, 1, MSG_NOSIGNAL) == 1 && recv(to, &got, 1, 0) == 1 && got == sent;
    };
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
        threads.emplace_back([&] {
            for (int n = 0; n < connections && failed == 0; ++n) {
                const Connected pair;
                bool well = true;
                for (int k = 0; k < exchanges; ++k) {
                    well = well && exchange(pair.a, pair.b, k) && exchange(pair.b, pair.a, k);
                }
                const pid_t child = fork();
                if (child == 0) {
                    for (char byte = 0; recv(pair.b, &byte, 1, 0) == 1 && send(pair.b, &byte, 1, MSG_NOSIGNAL) == 1;) {
                        if (byte == 'a' + (exchanges - 1) % 26) {
                            _exit(0);
                        }
                    }
                    _exit(1);
                }
                for (int k = exchanges - 26; k < exchanges && well; ++k) {
                    const char sent = static_cast<char>('a' + k % 26);
                    char got = 0;
                    well = send(pair.a, &sent, 1, MSG_NOSIGNAL) == 1 && recv(pair.a, &got, 1, 0) == 1 && got == sent;
                }
                int status = -1;
                well = waitpid(child, &status, 0) == child && status == 0 && well;
                failed += well ? 0 : 1;
            }
        });
    }
    for (std::thread& one : threads) {
        one.join();
    }
    EXPECT_EQ(failed.load(), 0);
}

[[maybe_unused]] void test_a_program_gets_every_descriptor_up_to_its_limit() {
    in_child([] {
        constexpr rlim_t limit = 64;
        rlimit given{};
        getrlimit(RLIMIT_NOFILE, &given);
        given.rlim_cur = limit;
        setrlimit(RLIMIT_NOFILE, &given);
        const Pair pair; // the library's own descriptors are there from now on
        while (open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0) {
        }
        if (errno != EMFILE) {
            return 1;
        }
        for (rlim_t fd = 0; fd < limit; ++fd) {
            if (fcntl(static_cast<int>(fd), F_GETFD) < 0) {
                return 2; // a number that the program could not have
            }
        }
        rlimit now{};
        getrlimit(RLIMIT_NOFILE, &now);
        if (now.rlim_cur != given.rlim_cur || now.rlim_max != given.rlim_max) {
            return 3;
        }
        pair.exchange();
        return path_of(pair.a) == 3 ? 0 : 4;
    });
}

[[maybe_unused]] void test_a_child_and_a_program_see_the_same_limit() {
    const Pair pair;
    rlimit before{};
    getrlimit(RLIMIT_NOFILE, &before);
    in_child([&] {
        rlimit now{};
        getrlimit(RLIMIT_NOFILE, &now);
        if (now.rlim_cur != before.rlim_cur || now.rlim_max != before.rlim_max) {
            return 1;
        }
        const std::string shown = std::to_string(before.rlim_cur);
        execl("/bin/sh", "sh", "-c", "test \"$(ulimit -n)\" = \"$0\"", shown.c_str(), nullptr);
        return 2;
    });
}

[[maybe_unused]] void test_no_descriptor_of_the_library_is_inherited_by_exec() {
    const Pair pair;
    in_child([&] {
        pair.exchange();
        for (const int fd : open_descriptors()) { // what the test runner has left open
            if (fd > STDERR_FILENO && path_of(fd) >= 0) {
                continue;
            }
            if (fd > STDERR_FILENO) {
                fcntl(fd, F_SETFD, FD_CLOEXEC);
            }
        }
        // 0, 1, 2, and the one that reads the folder.
        execl("/bin/sh", "sh", "-c", "test \"$(ls /proc/self/fd | wc -l)\" -eq 4", nullptr);
        return 2;
    });
}

[[maybe_unused]] void test_a_program_that_closes_every_number_leaves_the_library_its_own() {
    in_child([] {
        { const Pair pair; }
        constexpr int beyond = 4096;
        for (int fd = 3; fd < beyond; ++fd) {
            close(fd);
        }
        close_range(3, ~0U, 0);
        const Pair again;
        return 0;
    });
}

// A call on an upgraded connection on a stack of PTHREAD_STACK_MIN, which holds the thread's local storage, too.
[[maybe_unused]] void test_threads_with_the_smallest_stack_send_receive_and_wait() {
    const Pair pair;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    EXPECT_EQ(pthread_attr_setstacksize(&attributes, 16384), 0);
    pthread_t thread{};
    const auto body = [](void* given) -> void* {
        const auto& connected = *static_cast<const Pair*>(given);
        std::array<char, 100> bytes{};
        pollfd one{connected.b, POLLIN, 0};
        (void)poll(&one, 1, -1);
        const ssize_t n = recv(connected.b, bytes.data(), bytes.size(), 0);
        fd_set set;
        FD_ZERO(&set);
        FD_SET(connected.b, &set);
        (void)select(connected.b + 1, nullptr, &set, nullptr, nullptr);
        (void)send(connected.b, bytes.data(), static_cast<size_t>(n), 0);
        return nullptr;
    };
    EXPECT_EQ(pthread_create(&thread, &attributes, body, const_cast<Pair*>(&pair)), 0);
    usleep(10000); // it sleeps
    EXPECT_EQ(send(pair.a, "hello", 5, 0), 5);
    std::array<char, 5> answer{};
    EXPECT_EQ(recv(pair.a, answer.data(), answer.size(), MSG_WAITALL), 5);
    pthread_join(thread, nullptr);
    pthread_attr_destroy(&attributes);
}

const Pair* of_handler = nullptr;
std::atomic<int> handled{0};

[[maybe_unused]] void test_a_handler_on_a_small_stack_sends_and_receives() {
    const Pair pair;
    constexpr size_t small = 8192;
    // Below it nothing is mapped, so that what does not fit is seen.
    char* stack =
        static_cast<char*>(mmap(nullptr, 4 * small, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) + 2 * small;
    EXPECT_EQ(mprotect(stack, small, PROT_READ | PROT_WRITE), 0);
    stack_t mine{};
    stack_t before{};
    mine.ss_sp = stack;
    mine.ss_size = small;
    EXPECT_EQ(sigaltstack(&mine, &before), 0);
    of_handler = &pair;
    handled = 0;
    struct sigaction action {};
    action.sa_handler = [](int) {
        char byte = 'h';
        pollfd one{of_handler->b, POLLIN, 0};
        handled += send(of_handler->a, &byte, 1, 0) == 1 && poll(&one, 1, 1000) == 1 &&
                           recv(of_handler->b, &byte, 1, 0) == 1 && byte == 'h'
                       ? 1
                       : 0;
    };
    action.sa_flags = SA_ONSTACK;
    EXPECT_EQ(sigaction(SIGUSR1, &action, nullptr), 0);
    constexpr int times = 100;
    for (int i = 0; i < times; ++i) {
        raise(SIGUSR1);
        pair.exchange();
    }
    EXPECT_EQ(handled.load(), times);
    EXPECT_EQ(path_of(pair.a), 3);
    signal(SIGUSR1, SIG_DFL);
    before.ss_flags = (before.ss_flags & SS_DISABLE) != 0 ? SS_DISABLE : 0;
    sigaltstack(&before, nullptr);
}

// A signal that is pending when a call swaps the mask ends that call: it is not lost between two steps of it.
template <class Wait> void expect_interrupted(Wait&& wait) {
    struct sigaction action {};
    action.sa_handler = [](int) { ++handled; };
    EXPECT_EQ(sigaction(SIGUSR1, &action, nullptr), 0);
    sigset_t blocked;
    sigset_t before;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    constexpr int times = 50;
    for (int i = 0; i < times; ++i) {
        handled = 0;
        pthread_kill(pthread_self(), SIGUSR1);
        errno = 0;
        EXPECT_EQ(wait(&before), -1);
        EXPECT_EQ(errno, EINTR);
        EXPECT_EQ(handled.load(), 1);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    signal(SIGUSR1, SIG_DFL);
}

void test_a_pending_signal_ends_ppoll() {
    const Pair pair;
    expect_interrupted([&](const sigset_t* mask) {
        std::array<pollfd, 2> both{pollfd{pair.a, POLLIN, 0}, pollfd{pair.b, POLLIN, 0}};
        return ppoll(both.data(), both.size(), nullptr, mask);
    });
}

void test_a_pending_signal_ends_pselect() {
    const Pair pair;
    expect_interrupted([&](const sigset_t* mask) {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(pair.a, &set);
        return pselect(pair.a + 1, &set, nullptr, nullptr, nullptr, mask);
    });
}

void test_a_pending_signal_ends_epoll_pwait() {
    const Pair pair;
    const int set = epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{};
    event.events = EPOLLIN;
    EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, pair.a, &event), 0);
    expect_interrupted([&](const sigset_t* mask) { return epoll_pwait(set, &event, 1, -1, mask); });
    close(set);
}

void test_a_member_that_is_added_twice_stays_one() {
    const Pair pair;
    const int set = epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{};
    event.events = EPOLLIN;
    EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, pair.a, &event), 0);
    EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, pair.a, &event), -1);
    EXPECT_EQ(errno, EEXIST);
    constexpr int times = 100;
    for (int i = 0; i < times; ++i) {
        EXPECT_EQ(epoll_wait(set, &event, 1, 1), 0);
        pair.exchange();
    }
    char byte = 'y';
    EXPECT_EQ(send(pair.b, &byte, 1, 0), 1);
    EXPECT_EQ(epoll_wait(set, &event, 1, 1000), 1);
    close(set);
}

// The canceled call's thread runs its handlers, and the connection goes on.
template <class Call> void expect_canceled(Call&& call) {
    const Pair pair;
    constexpr int times = 20;
    for (int i = 0; i < times; ++i) {
        struct Given {
            const Pair& pair;
            Call& call;
            std::atomic<bool> cleaned{false};
        } given{pair, call};
        pthread_t thread{};
        const auto body = [](void* argument) -> void* {
            auto& mine = *static_cast<Given*>(argument);
            pthread_cleanup_push([](void* flag) { *static_cast<std::atomic<bool>*>(flag) = true; }, &mine.cleaned);
            mine.call(mine.pair);
            pthread_cleanup_pop(0);
            return nullptr;
        };
        EXPECT_EQ(pthread_create(&thread, nullptr, body, &given), 0);
        usleep(static_cast<useconds_t>(i % 4) * 1000); // before, while it spins, while it sleeps
        EXPECT_EQ(pthread_cancel(thread), 0);
        void* result = nullptr;
        EXPECT_EQ(pthread_join(thread, &result), 0);
        EXPECT(result == PTHREAD_CANCELED);
        EXPECT(given.cleaned.load());
        pair.exchange();
    }
    EXPECT_EQ(path_of(pair.a), 3);
}

void test_a_thread_is_canceled_in_recv() {
    expect_canceled([](const Pair& pair) {
        char byte = 0;
        (void)recv(pair.a, &byte, 1, 0);
    });
}

void test_a_thread_is_canceled_in_poll() {
    expect_canceled([](const Pair& pair) {
        pollfd one{pair.a, POLLIN, 0};
        (void)poll(&one, 1, -1);
    });
}

void test_a_thread_is_canceled_in_epoll_wait() {
    expect_canceled([](const Pair& pair) {
        static int set = epoll_create1(EPOLL_CLOEXEC);
        epoll_event event{};
        event.events = EPOLLIN;
        (void)epoll_ctl(set, EPOLL_CTL_ADD, pair.a, &event);
        (void)epoll_wait(set, &event, 1, -1);
    });
}

// A thread waits in every way while another one closes the connection, as programs should not do, and some do.
[[maybe_unused]] void test_a_connection_is_closed_under_threads_that_use_it() {
    constexpr int times = 30;
    for (int i = 0; i < times; ++i) {
        Pair pair;
        std::atomic<bool> over{false};
        constexpr int ways = 3;
        std::vector<std::thread> threads;
        threads.reserve(ways);
        for (int way = 0; way < ways; ++way) {
            threads.emplace_back([&, way] {
                std::array<char, 64> bytes{};
                while (!over) {
                    pollfd one{pair.b, POLLIN, 0};
                    if (way == 0) {
                        (void)poll(&one, 1, 1);
                    } else if (way == 1) {
                        (void)send(pair.b, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
                    } else {
                        (void)recv(pair.b, bytes.data(), bytes.size(), MSG_DONTWAIT);
                    }
                }
            });
        }
        usleep(static_cast<useconds_t>(i) * 100);
        close(pair.b);
        usleep(1000);
        over = true;
        for (std::thread& thread : threads) {
            thread.join();
        }
        pair.b = -1;
    }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Children that no handler of pthread_atfork is called for: what they close, the parent keeps.
void test_a_child_of_vfork_closes_its_own_numbers() {
    const Pair pair;
    const pid_t child = vfork(); // NOLINT(clang-analyzer-security.insecureAPI.vfork): what programs do
    if (child == 0) {
        close(pair.a); // NOLINT(clang-analyzer-unix.Vfork)
        close(pair.b); // NOLINT(clang-analyzer-unix.Vfork)
        _exit(0);
    }
    await_end(child);
    pair.exchange();
    EXPECT_EQ(path_of(pair.a), 3);
    EXPECT_EQ(path_of(pair.b), 3);
}

void test_a_child_of_clone_closes_its_own_numbers() {
    const Pair pair;
    std::vector<char> stack(size_t{64} << 10);
    const auto run = [](void* both) {
        close(static_cast<const Pair*>(both)->a);
        close(static_cast<const Pair*>(both)->b);
        return 0;
    };
    for (const int flags : {SIGCHLD, SIGCHLD | CLONE_VM | CLONE_VFORK}) {
        await_end(clone(run, stack.data() + stack.size(), flags, const_cast<Pair*>(&pair)));
        pair.exchange();
        EXPECT_EQ(path_of(pair.a), 3);
    }
}

void test_a_child_of_raw_fork_closes_its_own_numbers() {
    const Pair pair;
    const pid_t child = _Fork();
    if (child == 0) {
        close(pair.a);
        close(pair.b);
        _exit(0);
    }
    await_end(child);
    pair.exchange();
    EXPECT_EQ(path_of(pair.b), 3);
}
#endif

// UDP on a number that was a TCP socket's before is not taken for one, nor TCP on one that was UDP's.
void test_a_number_is_used_again_by_another_kind_of_socket() {
    for (const bool tcp_first : {true, false}) {
        const int before = socket(AF_INET, (tcp_first ? SOCK_STREAM : SOCK_DGRAM) | SOCK_CLOEXEC, 0);
        const int other = socket(AF_INET, (tcp_first ? SOCK_DGRAM : SOCK_STREAM) | SOCK_CLOEXEC, 0);
        EXPECT_EQ(dup2(other, before), before);
        close(other);
        const preload_test::Listener listener;
        (void)listener.connect(before);
        EXPECT_EQ(path_of(before), tcp_first ? -1 : 0);
        close(before);
    }
}

} // namespace

int main() {
    if (path_of(-1) != -1 || dlsym(RTLD_DEFAULT, "rspreload_path") == nullptr) {
        fprintf(stderr, "process_test: run it by process_test.sh, under the preload library\n");
        return 1;
    }
    const CMUnitTest tests[] = {
// A sanitizer needs large stacks, and does not survive that a process with threads forks.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        FABTEST(test_children_are_made_while_connections_begin),
        FABTEST(test_threads_fork_children_that_serve_their_connections),
        FABTEST(test_a_program_gets_every_descriptor_up_to_its_limit),
        FABTEST(test_a_child_and_a_program_see_the_same_limit),
        FABTEST(test_no_descriptor_of_the_library_is_inherited_by_exec),
        FABTEST(test_a_program_that_closes_every_number_leaves_the_library_its_own),
        FABTEST(test_threads_with_the_smallest_stack_send_receive_and_wait),
        FABTEST(test_a_handler_on_a_small_stack_sends_and_receives),
        FABTEST(test_a_child_of_vfork_closes_its_own_numbers),
        FABTEST(test_a_child_of_clone_closes_its_own_numbers),
        FABTEST(test_a_child_of_raw_fork_closes_its_own_numbers),
#endif
        FABTEST(test_a_number_is_used_again_by_another_kind_of_socket),
        FABTEST(test_a_pending_signal_ends_ppoll),
        FABTEST(test_a_pending_signal_ends_pselect),
        FABTEST(test_a_pending_signal_ends_epoll_pwait),
        FABTEST(test_a_member_that_is_added_twice_stays_one),
        FABTEST(test_a_thread_is_canceled_in_recv),
        FABTEST(test_a_thread_is_canceled_in_poll),
        FABTEST(test_a_thread_is_canceled_in_epoll_wait),
// To ThreadSanitizer, what this program does is a race.
#ifndef __SANITIZE_THREAD__
        FABTEST(test_a_connection_is_closed_under_threads_that_use_it),
#endif
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
