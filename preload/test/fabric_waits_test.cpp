// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What a wait for bytes costs on the fabric path: no look at the kernel's socket, whose own events say when there is
// something to be found. fabric_waits_test.sh runs it, over the fabric path on one host.
#include <array>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <functional>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>

#include "preload/base/system.hpp"
#include "preload/test/fabric_pair.hpp"
#include "preload/test/wakeup_parts/sleeper.hpp"

namespace {

using preload_test::FabricPair;
using preload_test::on_fabric;

#if defined(__x86_64__) // whose registers the handler reads

constexpr uint32_t counted_mark = 0x636f756eU; // the sixth argument of a call that the handler repeats
std::atomic<int> ioctls{0};

void count_ioctl(int /*signal*/, siginfo_t* /*info*/, void* context) {
    auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    ioctls.fetch_add(1);
    registers[REG_RAX] = preload::sys::invoke(SYS_ioctl, static_cast<unsigned long>(registers[REG_RDI]),
                                              static_cast<unsigned long>(registers[REG_RSI]),
                                              static_cast<unsigned long>(registers[REG_RDX]), 0, 0, counted_mark);
}

// From now on, for this thread and those that it starts (seccomp(2)).
void count_ioctls() {
    struct sigaction action {};
    action.sa_sigaction = count_ioctl;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    EXPECT_EQ(sigaction(SIGSYS, &action, nullptr), 0);
    std::array<sock_filter, 6> program{{
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[5])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, counted_mark, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
    }};
    const sock_fprog filter{program.size(), program.data()};
    // Not by the library's prctl(), which has the kernel move the bytes of a process with a filter.
    EXPECT_EQ(preload::sys::call(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    EXPECT_EQ(preload::sys::call(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0), 0);
}

// How many a thread makes that waits `times` times for a byte, each of which is sent once it is asleep.
int ioctls_of_waits(const FabricPair& pair, int times, const std::function<bool()>& wait) {
    int found = -1;
    std::atomic<pid_t> waiter{0};
    std::atomic<int> waits{0};
    fabtests::Threads threads;
    threads.start([&] {
        count_ioctls();
        waiter = gettid();
        const int before = ioctls;
        for (int i = 0; i < times; ++i) {
            ++waits;
            EXPECT(wait());
            char byte = 0;
            EXPECT_EQ(recv(pair.b, &byte, 1, 0), 1);
        }
        found = ioctls - before;
    });
    threads.start([&] {
        for (int i = 1; i <= times; ++i) {
            EXPECT(wakeup_test::eventually([&] { return waits == i && wakeup_test::is_thread_asleep(waiter); }));
            EXPECT_EQ(send(pair.a, "b", 1, MSG_NOSIGNAL), 1);
        }
    });
    threads.join();
    EXPECT_EQ(preload_test::path_of(pair.b), 3);
    return found;
}

constexpr int times = 100;

// Until the service watches a sleeper, or while an end switches, frames wake it: these are looked for.
void expect_waits_without_ioctls(const FabricPair& pair, const std::function<bool()>& wait) {
    constexpr int most = 100;
    int found = ioctls_of_waits(pair, times, wait);
    for (int i = 1; i < most && found != 0; ++i) {
        found = ioctls_of_waits(pair, times, wait);
    }
    EXPECT_EQ(found, 0);
}

void test_the_ioctls_of_a_thread_are_counted() {
    const auto pair = on_fabric();
    const int found = ioctls_of_waits(*pair, times, [&] {
        int count = 0;
        return preload::sys::ioctl(pair->b, FIONREAD, &count) == 0;
    });
    EXPECT(found >= times);
}

void test_recv_does_not_look_at_the_kernel_before_it_sleeps() {
    const auto pair = on_fabric();
    expect_waits_without_ioctls(*pair, [] { return true; });
}

void test_poll_does_not_look_at_the_kernel_before_it_sleeps() {
    const auto pair = on_fabric();
    expect_waits_without_ioctls(*pair, [&] {
        pollfd one{pair->b, POLLIN, 0};
        return poll(&one, 1, -1) == 1;
    });
}

void expect_none_by_set(uint32_t flags) {
    const auto pair = on_fabric();
    const int set = epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{};
    event.events = EPOLLIN | flags;
    EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, pair->b, &event), 0);
    expect_waits_without_ioctls(*pair, [&] { return epoll_wait(set, &event, 1, -1) == 1; });
    close(set);
}

void test_a_set_does_not_look_at_the_kernel_before_it_sleeps() { expect_none_by_set(0); }
void test_an_edge_triggered_set_does_not_look_at_the_kernel_before_it_sleeps() { expect_none_by_set(EPOLLET); }

#else

void test_the_ioctls_of_a_thread_are_counted() {
    throw fabtests::Skip("the registers of this processor are not known");
}

#endif

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_the_ioctls_of_a_thread_are_counted),
#if defined(__x86_64__)
        FABTEST(test_recv_does_not_look_at_the_kernel_before_it_sleeps),
        FABTEST(test_poll_does_not_look_at_the_kernel_before_it_sleeps),
        FABTEST(test_a_set_does_not_look_at_the_kernel_before_it_sleeps),
        FABTEST(test_an_edge_triggered_set_does_not_look_at_the_kernel_before_it_sleeps),
#endif
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
