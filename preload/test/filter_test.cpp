// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// System call filters (seccomp(2)), and calls for processes with one thread, in a program with upgraded connections:
// the library's thread must not be in their way. filter_test.sh runs it under the preload library.
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "preload/test/pair.hpp"

namespace {

using preload_test::Connected;
using preload_test::Pair;
using preload_test::path_of;
using Clock = std::chrono::steady_clock;

size_t threads_of(pid_t process) {
    size_t count = 0;
    DIR* all = opendir(("/proc/" + std::to_string(process) + "/task").c_str());
    while (const dirent* entry = all != nullptr ? readdir(all) : nullptr) {
        count += entry->d_name[0] != '.' ? 1 : 0;
    }
    closedir(all);
    return count;
}

// Any other call ends the process, whichever thread makes it.
long allow_few_calls() {
    const auto allow = [](unsigned number) {
        return std::array<sock_filter, 2>{
            {BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)}};
    };
    std::vector<sock_filter> program{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
    for (const unsigned number : {SYS_read, SYS_write, SYS_clock_nanosleep, SYS_exit_group}) {
        for (const sock_filter& one : allow(number)) {
            program.push_back(one);
        }
    }
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
    sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter);
}

bool exchanges_by_read_and_write(const Connected& pair) {
    char byte = 'x';
    return write(pair.a, &byte, 1) == 1 && read(pair.b, &byte, 1) == 1 && write(pair.b, &byte, 1) == 1 &&
           read(pair.a, &byte, 1) == 1 && byte == 'x';
}

void need_own_calls_only() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    throw fabtests::Skip("a sanitizer makes system calls that the filter does not allow");
#endif
}

void test_a_filter_for_all_threads_ends_the_librarys() {
    need_own_calls_only();
    std::array<int, 2> to_child{};
    std::array<int, 2> to_parent{};
    EXPECT_EQ(pipe(to_child.data()), 0);
    EXPECT_EQ(pipe(to_parent.data()), 0);
    const pid_t child = fork();
    if (child == 0) {
        {
            const Pair pair;
            char installed = allow_few_calls() == 0 ? 'i' : 'f';
            (void)!write(to_parent[1], &installed, 1);
            (void)!read(to_child[0], &installed, 1);
            _exit(exchanges_by_read_and_write(pair) ? 0 : 1);
        }
    }
    char installed = 0;
    EXPECT_EQ(read(to_parent[0], &installed, 1), 1);
    EXPECT_EQ(installed, 'i');
    EXPECT_EQ(threads_of(child), 1U);
    EXPECT_EQ(write(to_child[1], "", 1), 1);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    for (const int fd : {to_child[0], to_child[1], to_parent[0], to_parent[1]}) {
        close(fd);
    }
}

// Echoes on each, until the peer closes.
[[noreturn]] void serve(int listener, int count) {
    std::vector<pollfd> all;
    for (int i = 0; i < count; ++i) {
        all.push_back({accept(listener, nullptr, nullptr), POLLIN, 0});
    }
    for (;;) {
        poll(all.data(), all.size(), -1);
        for (const pollfd& one : all) {
            char byte = 0;
            if (one.revents != 0 && (recv(one.fd, &byte, 1, 0) != 1 || send(one.fd, &byte, 1, 0) != 1)) {
                _exit(0);
            }
        }
    }
}

// Connects to a process that is stopped once all are upgraded, and returns how long a filter takes then.
std::chrono::milliseconds time_of_filter_with_stopped_peers(int count) {
    std::optional<preload_test::Listener> listener(count);
    const pid_t peer = fork();
    if (peer == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve(listener->fd(), count);
    }
    std::vector<int> all;
    for (int i = 0; i < count; ++i) {
        all.push_back(listener->connect());
    }
    listener.reset(); // behind a filter, this process may not
    constexpr int patience = 5000;
    const auto upgraded = [&] { return std::all_of(all.begin(), all.end(), [](int fd) { return path_of(fd) == 3; }); };
    for (int i = 0; i < patience && !upgraded(); ++i) {
        for (const int fd : all) {
            char byte = 'x';
            EXPECT_EQ(send(fd, &byte, 1, 0), 1);
            EXPECT_EQ(recv(fd, &byte, 1, 0), 1);
        }
        usleep(1000);
    }
    EXPECT(upgraded());
    kill(peer, SIGSTOP);
    int status = 0;
    waitpid(peer, &status, WUNTRACED);
    for (const int fd : all) {
        EXPECT_EQ(send(fd, "x", 1, 0), 1);
    }
    const auto begin = Clock::now();
    EXPECT_EQ(allow_few_calls(), 0);
    return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
}

void test_peers_that_do_not_answer_delay_a_filter_once() {
    need_own_calls_only();
    const pid_t child = fork();
    if (child == 0) {
        const auto taken = time_of_filter_with_stopped_peers(4);
        _exit(taken < std::chrono::milliseconds(fabtests::patience(8000)) ? 0 : 1);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}

void test_probes_for_filters_change_nothing() {
    const Pair pair;
    const uint32_t action = SECCOMP_RET_ALLOW;
    EXPECT_EQ(syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action), 0);
    EXPECT_EQ(syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 1, nullptr), -1);
    EXPECT_EQ(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, nullptr), -1);
    EXPECT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, nullptr), -1);
    pair.exchange();
    EXPECT_EQ(path_of(pair.a), 3);
    EXPECT_EQ(path_of(pair.b), 3);
}

// In a child with an upgraded connection, which goes on in memory, or not, as is expected.
template <class Body> void expect_in_child(int path, Body&& body) {
    const pid_t child = fork();
    if (child == 0) {
        const Pair pair;
        int result = body();
        if (result == 0) {
            const size_t threads = path == 3 ? 2 : 1;
            result = threads_of(getpid()) != threads ? 201 : result;
            for (int i = 0; i < 100 && result == 0; ++i) {
                pair.exchange();
            }
            result = result == 0 && path_of(pair.a) != path ? 202 : result;
        }
        _exit(result);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT(WIFEXITED(status));
    if (WEXITSTATUS(status) == EPERM) {
        throw fabtests::Skip("not permitted here");
    }
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

void test_a_user_namespace_is_entered() {
    expect_in_child(3, [] { return unshare(CLONE_NEWUSER) == 0 ? 0 : errno; });
}

void test_a_user_namespace_is_entered_by_its_number() {
    expect_in_child(3, [] { return syscall(SYS_unshare, CLONE_NEWUSER) == 0 ? 0 : errno; });
}

// No thread can be made any more, also the library's. Several times: the kernel counts a thread for a moment after it
// has ended.
void test_a_user_namespace_is_entered_with_one_for_processes() {
    for (int i = 0; i < 30; ++i) {
        expect_in_child(-1, [] { return unshare(CLONE_NEWUSER | CLONE_NEWPID) == 0 ? 0 : errno; });
    }
}

void test_a_mount_namespace_is_entered() {
    expect_in_child(3, [] {
        const int fd = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
        const int result = setns(fd, CLONE_NEWNS) == 0 && setns(fd, 0) == 0 ? 0 : errno;
        close(fd);
        return result;
    });
}

// The effective capabilities of each thread of this process.
std::vector<std::string> capabilities() {
    std::vector<std::string> found;
    DIR* all = opendir("/proc/self/task");
    while (const dirent* entry = readdir(all)) {
        std::ifstream status(std::string("/proc/self/task/") + entry->d_name + "/status");
        for (std::string line; std::getline(status, line);) {
            if (line.rfind("CapEff", 0) == 0) {
                found.push_back(line);
            }
        }
    }
    closedir(all);
    return found;
}

void test_capabilities_are_dropped_by_all_threads() {
    if (geteuid() != 0) {
        throw fabtests::Skip("only root has some");
    }
    expect_in_child(3, [] {
        __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
        const std::array<__user_cap_data_struct, 2> none{};
        if (syscall(SYS_capset, &header, none.data()) != 0) {
            return errno;
        }
        const std::vector<std::string> left = capabilities();
        return std::all_of(left.begin(), left.end(), [&](const std::string& one) { return one == left[0]; }) ? 0 : 203;
    });
}

// While the library's thread is away, and begins again.
void test_nothing_is_lost_in_many_pauses() {
    const pid_t child = fork();
    if (child == 0) {
        const Pair pair;
        __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
        std::array<__user_cap_data_struct, 2> present{};
        syscall(SYS_capget, &header, present.data());
        for (int i = 0; i < 200; ++i) {
            const Pair another; // agreed on by the new thread
            pair.exchange();
            syscall(SYS_capset, &header, present.data());
        }
        _exit(path_of(pair.a) == 3 ? 0 : 1);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}

} // namespace

int main() {
#ifdef __SANITIZE_THREAD__
    printf("1..0 # SKIP filter_test: ThreadSanitizer has a thread, and does not allow forks then\n");
    return 0;
#endif
    const CMUnitTest tests[] = {
        FABTEST(test_a_filter_for_all_threads_ends_the_librarys),
        FABTEST(test_peers_that_do_not_answer_delay_a_filter_once),
        FABTEST(test_probes_for_filters_change_nothing),
        FABTEST(test_a_user_namespace_is_entered),
        FABTEST(test_a_user_namespace_is_entered_by_its_number),
        FABTEST(test_a_user_namespace_is_entered_with_one_for_processes),
        FABTEST(test_a_mount_namespace_is_entered),
        FABTEST(test_capabilities_are_dropped_by_all_threads),
        FABTEST(test_nothing_is_lost_in_many_pauses),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
