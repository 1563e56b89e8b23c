// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// System calls that programs make by syscall(2), without the functions that libc has for some of them.
#include "preload/test/calls/calls.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>

#include <linux/aio_abi.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "rsockets/test/asleep.hpp"

using namespace calls;

namespace {

constexpr size_t kernel_mask_bytes = 8;

// Writes to fd once the calling thread sleeps in the call.
template <class Call> void write_once_asleep(int fd, Call&& call) {
    std::thread writer([&, sleeper = syscall(SYS_gettid)] {
        await_thread_asleep(sleeper);
        MUST(write(fd, "x", 1) == 1);
    });
    call();
    writer.join();
}

void say_left(const timespec& left, time_t given) {
    say("  time is left: %d", left.tv_sec < given && (left.tv_sec > 0 || left.tv_nsec > 0));
}

void read_byte(int fd) {
    char byte = 0;
    SAY(read(fd, &byte, 1));
}

} // namespace

CALLS_CASE(pselect_by_syscall_waits_for_bytes) {
    const Pair one = pair();
    fd_set in;
    const auto wait = [&](timespec* time, const void* mask) {
        FD_ZERO(&in);
        FD_SET(one.server, &in);
        SAY(syscall(SYS_pselect6, one.server + 1, &in, nullptr, nullptr, time, mask));
        say("  %d", FD_ISSET(one.server, &in) ? 1 : 0);
    };
    timespec none{};
    wait(&none, nullptr);
    MUST(write(one.client, "x", 1) == 1);
    static const timespec constant{5, 0}; // the kernel does not mind that it cannot tell what is left
    wait(const_cast<timespec*>(&constant), nullptr);
    read_byte(one.server);
    timespec ten{10, 0};
    write_once_asleep(one.client, [&] { wait(&ten, nullptr); });
    say_left(ten, 10);
    read_byte(one.server);
    const std::array<uint64_t, 1> empty{};
    const std::array<unsigned long, 2> mask{reinterpret_cast<unsigned long>(empty.data()), kernel_mask_bytes};
    write_once_asleep(one.client, [&] { wait(nullptr, mask.data()); });
    read_byte(one.server);
    const std::array<unsigned long, 2> wrong{reinterpret_cast<unsigned long>(empty.data()), 3};
    SAY(syscall(SYS_pselect6, one.server + 1, &in, nullptr, nullptr, &none, wrong.data()));
    timespec invalid{0, -1};
    SAY(syscall(SYS_pselect6, one.server + 1, &in, nullptr, nullptr, &invalid, nullptr));
    close_all(one);
}

namespace {
volatile sig_atomic_t signals = 0;
void count_signal(int) { signals = signals + 1; }
} // namespace

CALLS_CASE(pselect_by_syscall_lets_a_blocked_signal_in) {
    const Pair one = pair();
    struct sigaction action {};
    action.sa_handler = count_signal;
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    MUST(sigaction(SIGUSR1, &action, nullptr) == 0 && sigprocmask(SIG_BLOCK, &blocked, nullptr) == 0);
    MUST(raise(SIGUSR1) == 0);
    fd_set in;
    FD_ZERO(&in);
    FD_SET(one.server, &in);
    timespec ten{10, 0};
    const std::array<uint64_t, 1> empty{};
    const std::array<unsigned long, 2> mask{reinterpret_cast<unsigned long>(empty.data()), kernel_mask_bytes};
    SAY(syscall(SYS_pselect6, one.server + 1, &in, nullptr, nullptr, &ten, mask.data()));
    say("%d", static_cast<int>(signals));
    close_all(one);
}

CALLS_CASE(ppoll_by_syscall_tells_how_much_time_is_left) {
    const Pair one = pair();
    pollfd fd{one.server, POLLIN, 0};
    timespec ten{10, 0};
    write_once_asleep(one.client, [&] { SAY(syscall(SYS_ppoll, &fd, 1, &ten, nullptr, kernel_mask_bytes)); });
    say_left(ten, 10);
    close_all(one);
}

#ifdef SYS_select
CALLS_CASE(select_by_syscall_waits_for_bytes) {
    const Pair one = pair();
    fd_set in;
    FD_ZERO(&in);
    FD_SET(one.server, &in);
    timeval ten{10, 0};
    write_once_asleep(one.client, [&] { SAY(syscall(SYS_select, one.server + 1, &in, nullptr, nullptr, &ten)); });
    say("%d", FD_ISSET(one.server, &in) ? 1 : 0);
    close_all(one);
}
#endif

// syscall(2) is no cancellation point.
CALLS_CASE(a_thread_is_cancelled_in_a_read_by_syscall) {
    const Pair one = pair();
    std::atomic<long> sleeper{0};
    std::atomic<long> got{-2};
    std::thread reader([&] {
        sleeper = syscall(SYS_gettid);
        char byte = 0;
        got = syscall(SYS_read, one.server, &byte, 1);
    });
    while (sleeper == 0) {
        std::this_thread::yield();
    }
    await_thread_asleep(sleeper);
    MUST(pthread_cancel(reader.native_handle()) == 0);
    MUST(write(one.client, "x", 1) == 1);
    reader.join();
    say("%ld", got.load());
    close_all(one);
}

CALLS_CASE(preadv2_and_pwritev2_by_syscall) {
    const Pair one = pair();
    std::array<char, 8> bytes{};
    const iovec out{const_cast<char*>("hello"), 5};
    const iovec in{bytes.data(), bytes.size()};
    SAY(syscall(SYS_preadv2, one.server, &in, 1, -1L, -1L, RWF_NOWAIT));
    SAY(write(one.client, "there", 5));
    SAY(syscall(SYS_preadv2, one.server, &in, 1, -1L, -1L, 0));
    say("%s", bytes.data());
    SAY(syscall(SYS_pwritev2, one.client, &out, 1, -1L, -1L, 0));
    SAY(read(one.server, bytes.data(), bytes.size()));
    say("%s", bytes.data());
    SAY(syscall(SYS_preadv2, one.server, &in, 1, 0L, 0L, 0));
    SAY(syscall(SYS_pwritev2, one.client, &out, 1, 0L, 0L, 0));
    say_echo(one.client, one.server);
    close_all(one);
}

namespace {

class Asynchronous {
  public:
    Asynchronous() { MUST(syscall(SYS_io_setup, 8, &context_) == 0); }
    Asynchronous(const Asynchronous&) = delete;
    Asynchronous& operator=(const Asynchronous&) = delete;
    ~Asynchronous() { syscall(SYS_io_destroy, context_); }

    void submit(int fd, uint16_t operation, void* buffer, size_t size) {
        iocb request{};
        request.aio_fildes = static_cast<uint32_t>(fd);
        request.aio_lio_opcode = operation;
        request.aio_buf = operation == IOCB_CMD_POLL ? uint64_t{POLLIN} : reinterpret_cast<uint64_t>(buffer);
        request.aio_nbytes = operation == IOCB_CMD_POLL ? 0 : size;
        iocb* requests[] = {&request};
        SAY(syscall(SYS_io_submit, context_, 1, requests));
    }
    void say_event() {
        io_event event{};
        timespec five{5, 0};
        SAY(syscall(SYS_io_getevents, context_, 1, 1, &event, &five));
        say("  %lld", static_cast<long long>(event.res));
    }

  private:
    aio_context_t context_ = 0;
};

} // namespace

CALLS_CASE(asynchronous_operations_of_the_kernel) {
    const Pair one = pair();
    Asynchronous asynchronous;
    std::array<char, 16> bytes{};
    SAY(write(one.client, "hello", 5));
    asynchronous.submit(one.server, IOCB_CMD_PREAD, bytes.data(), 5);
    asynchronous.say_event();
    say("%s", bytes.data());
    asynchronous.submit(one.server, IOCB_CMD_POLL, nullptr, 0);
    SAY(write(one.client, "x", 1));
    asynchronous.say_event();
    SAY(read(one.server, bytes.data(), 1));
    asynchronous.submit(one.server, IOCB_CMD_PWRITE, const_cast<char*>("there"), 5);
    asynchronous.say_event();
    SAY(read(one.client, bytes.data(), bytes.size()));
    say_echo(one.client, one.server);
    SAY(syscall(SYS_io_submit, 0, 1, nullptr));
    close_all(one);
}
