// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Signals that come while calls are under way: none is slept through, and what a handler calls works or says EAGAIN.
// The stack that calls take, which a handler may have little of.
//
//     RSOCKET_SIGNAL_ROUNDS=100000 rsockets/test/signal_test
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>

#include <poll.h>
#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_eq.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rsockets/test/asleep.hpp"
#include "rsockets/test/sockets.hpp"

namespace {

using namespace fabtests;
using namespace rsocket_test;

int rounds(int otherwise) {
    const char* text = getenv("RSOCKET_SIGNAL_ROUNDS");
    return text != nullptr && atoi(text) > 0 ? atoi(text) : otherwise;
}

thread_local bool raise_before_sleep = false;
std::atomic<int> handled{0};

void count(int) { ++handled; }

void handle(int number, void (*handler)(int), int flags = 0) {
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = flags;
    EXPECT_EQ(sigaction(number, &action, nullptr), 0);
}

} // namespace

#ifdef __SANITIZE_THREAD__
// The provider may take memory in a handler; see the man page.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options();
const char* __tsan_default_options() { return "report_signal_unsafe=0"; }
#endif

// The library's way to sleep: a signal comes just before.
extern "C" __attribute__((visibility("default"))) int ppoll(pollfd* fds, nfds_t count, const timespec* time,
                                                            const sigset_t* mask) {
    if (std::exchange(raise_before_sleep, false)) {
        (void)raise(SIGUSR1);
    }
    timespec left = time != nullptr ? *time : timespec{}; // which the system call changes
    return static_cast<int>(syscall(SYS_ppoll, fds, count, time != nullptr ? &left : nullptr, mask,
                                    _NSIG / 8)); // a cancellation point no more
}

namespace {

void set_timeout(int fd, int seconds) {
    const timeval limit{seconds, 0};
    EXPECT_EQ(rsetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
}

// A call that nothing ends but a signal, or its time limit.
void expect_interrupted(int count_of_rounds, const std::function<int()>& call) {
    for (int i = 0; i < count_of_rounds; ++i) {
        handled.store(0);
        raise_before_sleep = true;
        errno = 0;
        const int ret = call();
        EXPECT_EQ(ret, -1);
        EXPECT_EQ(errno, EINTR);
        EXPECT_EQ(handled.load(), 1);
    }
}

void test_no_signal_just_before_the_sleep_is_slept_through() {
    handle(SIGUSR1, count);
    const Ends ends = connected();
    set_timeout(ends.server, 10);
    expect_interrupted(rounds(2000), [&] {
        char byte = 0;
        return static_cast<int>(rrecv(ends.server, &byte, 1, 0));
    });
    pollfd one{ends.server, POLLIN, 0};
    expect_interrupted(rounds(1000), [&] { return rpoll(&one, 1, 10000); });
    const Number set(repoll_create(0));
    epoll_event event{};
    event.events = EPOLLIN;
    EXPECT_EQ(repoll_ctl(set, EPOLL_CTL_ADD, ends.server, &event), 0);
    expect_interrupted(rounds(1000), [&] {
        epoll_event told{};
        return repoll_wait(set, &told, 1, 10000);
    });
    const Number from = listener();
    set_timeout(from, 10);
    expect_interrupted(rounds(1000), [&] { return raccept(from, nullptr, nullptr); });
}

// In a child, which reads its settings anew: this process has not used the library yet.
void test_a_signal_ends_a_call_that_looks_for_long() {
    const pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        try {
            (void)setenv("RS_POLLING_TIME", "100000000", 1); // NOLINT(concurrency-mt-unsafe): there is no other thread
            handle(SIGALRM, count);
            const Ends ends = connected();
            const itimerval soon{{0, 0}, {0, 20000}};
            EXPECT_EQ(setitimer(ITIMER_REAL, &soon, nullptr), 0);
            char byte = 0;
            EXPECT_EQ(rrecv(ends.server, &byte, 1, 0), -1);
            EXPECT_EQ(errno, EINTR);
        } catch (const std::exception&) {
            _exit(1);
        }
        _exit(0);
    }
    const auto start = Clock::now();
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT(milliseconds_since(start) < patience(50000));
}

// The program's mask is its own: what it blocks does not end a call, and what a call's mask lets in does.
void test_the_mask_of_the_program_holds_during_a_sleep() {
    handle(SIGUSR1, count);
    const Ends ends = connected();
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    sigset_t before;
    EXPECT_EQ(pthread_sigmask(SIG_BLOCK, &blocked, &before), 0);
    handled.store(0);
    EXPECT_EQ(raise(SIGUSR1), 0);
    set_timeout(ends.server, 1);
    char byte = 0;
    EXPECT_EQ(rrecv(ends.server, &byte, 1, 0), -1);
    EXPECT_EQ(errno, EAGAIN);
    EXPECT_EQ(handled.load(), 0);
    pollfd one{ends.server, POLLIN, 0};
    EXPECT_EQ(rppoll(&one, 1, nullptr, &before), -1);
    EXPECT_EQ(errno, EINTR);
    EXPECT_EQ(handled.load(), 1);
    sigset_t now;
    EXPECT_EQ(pthread_sigmask(SIG_SETMASK, &before, &now), 0);
    EXPECT_EQ(sigismember(&now, SIGUSR1), 1);
    EXPECT_EQ(sigismember(&now, SIGUSR2), 0);
}

// ---- calls in a handler

struct InHandler {
    int fd = -1;      // to call on
    int waiting = -1; // to send on, for the call that is interrupted
    int calls = 0;
    int refused = 0; // EAGAIN
    int failed = 0;  // another error
};
InHandler in_handler;

void note(ssize_t ret) {
    ++in_handler.calls;
    in_handler.refused += ret < 0 && errno == EAGAIN ? 1 : 0;
    in_handler.failed += ret < 0 && errno != EAGAIN ? 1 : 0;
}

void call_in_handler(int) {
    const int saved = errno;
    char bytes[16] = {};
    note(rsend(in_handler.fd, bytes, sizeof(bytes), MSG_DONTWAIT | MSG_NOSIGNAL));
    note(rrecv(in_handler.fd, bytes, sizeof(bytes), MSG_DONTWAIT));
    pollfd one{in_handler.fd, POLLIN | POLLOUT, 0};
    note(rpoll(&one, 1, 0));
    errno = saved;
}

// A handler that ends what it interrupts, in place of the peer.
void send_in_handler(int) {
    const int saved = errno;
    note(rsend(in_handler.waiting, "!", 1, MSG_NOSIGNAL));
    errno = saved;
}

void test_a_handler_sends_while_its_thread_sleeps_in_a_call() {
    const Ends ends = connected();
    handle(SIGUSR1, send_in_handler, SA_RESTART);
    in_handler = {};
    in_handler.waiting = ends.client;
    Threads threads;
    threads.start([&, sleeper = syscall(SYS_gettid), thread = pthread_self()] {
        await_thread_asleep(sleeper);
        EXPECT_EQ(pthread_kill(thread, SIGUSR1), 0);
    });
    EXPECT_EQ(received(ends.server, 1), "!");
    threads.join();
    EXPECT_EQ(in_handler.calls, 1);
    EXPECT_EQ(in_handler.failed + in_handler.refused, 0);
}

class AlternateStack {
  public:
    // Below it, there is nothing.
    explicit AlternateStack(size_t size)
        : size_(size), memory_(static_cast<char*>(
                           mmap(nullptr, guard + size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
        EXPECT_EQ(mprotect(memory_, guard, PROT_NONE), 0);
        const stack_t own{memory_ + guard, 0, size};
        EXPECT_EQ(sigaltstack(&own, nullptr), 0);
    }
    AlternateStack(const AlternateStack&) = delete;
    AlternateStack& operator=(const AlternateStack&) = delete;
    ~AlternateStack() {
        const stack_t none{nullptr, SS_DISABLE, 0};
        (void)sigaltstack(&none, nullptr);
        munmap(memory_, guard + size_);
    }

  private:
    static constexpr size_t guard = 65536;
    const size_t size_;
    char* const memory_;
};

// At any moment, on the socket that is in use and on another, on a small stack.
void test_calls_in_a_handler_never_wait_for_what_they_interrupt() {
    const Ends ends = connected();
    const Ends others = connected();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    const AlternateStack stack(size_t{256} << 10);
#else
    const AlternateStack stack(size_t{24} << 10);
#endif
    handle(SIGALRM, call_in_handler, SA_RESTART | SA_ONSTACK);
    for (const int fd : {int{ends.client}, int{others.client}}) {
        in_handler = {};
        in_handler.fd = fd;
        const itimerval often{{0, 200}, {0, 200}};
        EXPECT_EQ(setitimer(ITIMER_REAL, &often, nullptr), 0);
        const auto start = Clock::now();
        std::array<char, 4000> bytes{};
        for (int i = 0; i < rounds(3000) || in_handler.calls < 30; ++i) {
            (void)rsend(ends.client, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
            (void)rrecv(ends.server, bytes.data(), bytes.size(), MSG_DONTWAIT);
            (void)rsend(ends.server, bytes.data(), 10, MSG_DONTWAIT | MSG_NOSIGNAL);
            (void)rrecv(ends.client, bytes.data(), 10, MSG_DONTWAIT);
            pollfd fds[] = {{ends.client, POLLIN | POLLOUT, 0}, {ends.server, POLLIN, 0}};
            (void)rpoll(fds, 2, 0);
            EXPECT(milliseconds_since(start) < patience(60000));
        }
        const itimerval never{};
        EXPECT_EQ(setitimer(ITIMER_REAL, &never, nullptr), 0);
        EXPECT_EQ(in_handler.failed, 0);
    }
}

// A handler of SIGPIPE stands behind the call that raised it.
void test_a_handler_of_sigpipe_may_call() {
    Ends ends = connected();
    const Ends others = connected();
    handle(SIGPIPE, send_in_handler);
    in_handler = {};
    in_handler.waiting = others.client;
    EXPECT_EQ(rshutdown(ends.client, SHUT_WR), 0);
    EXPECT_EQ(rsend(ends.client, "x", 1, 0), -1);
    EXPECT_EQ(errno, EPIPE);
    EXPECT_EQ(in_handler.calls, 1);
    EXPECT_EQ(in_handler.refused, 0);
    EXPECT_EQ(received(others.server, 1), "!");
}

// Which signals are delivered in a poll that does not sleep: its mask lets them in.
void test_a_handler_in_a_ppoll_without_time_may_call() {
    const Ends ends = connected();
    handle(SIGUSR1, send_in_handler);
    in_handler = {};
    in_handler.waiting = ends.client;
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    sigset_t before;
    EXPECT_EQ(pthread_sigmask(SIG_BLOCK, &blocked, &before), 0);
    EXPECT_EQ(raise(SIGUSR1), 0);
    pollfd one{ends.client, POLLIN, 0};
    constexpr timespec at_once{};
    const int ready = rppoll(&one, 1, &at_once, &before);
    EXPECT_EQ(pthread_sigmask(SIG_SETMASK, &before, nullptr), 0);
    EXPECT(ready <= 0);
    EXPECT_EQ(in_handler.calls, 1);
    EXPECT_EQ(in_handler.refused + in_handler.failed, 0);
    EXPECT_EQ(received(ends.server, 1), "!");
}

// ---- stack

// Bytes of stack that a body takes, in a thread of its own.
size_t stack_of(const std::function<void()>& body) {
    constexpr size_t size = size_t{256} << 10;
    constexpr unsigned char paint = 0xa5;
    struct Memory {
        void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        Memory() = default;
        Memory(const Memory&) = delete;
        Memory& operator=(const Memory&) = delete;
        ~Memory() { munmap(at, size); }
    } memory;
    struct Run {
        const std::function<void()>& body;
        size_t used = 0;
        unsigned char* low;
    } run{body, 0, static_cast<unsigned char*>(memory.at)};
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    EXPECT_EQ(pthread_attr_setstack(&attributes, memory.at, size), 0);
    pthread_t thread{};
    const auto start = [](void* argument) -> void* {
        auto& self = *static_cast<Run*>(argument);
        self.body(); // once, for what the first call resolves and makes
        auto* here = static_cast<unsigned char*>(__builtin_frame_address(0));
        unsigned char* top = here - 512;
        for (unsigned char* at = self.low; at < top; ++at) { // no call: its frame lies there
            *const_cast<volatile unsigned char*>(at) = paint;
        }
        self.body();
        unsigned char* low = self.low;
        while (low < top && *low == paint) {
            ++low;
        }
        self.used = static_cast<size_t>(here - low);
        return nullptr;
    };
    EXPECT_EQ(pthread_create(&thread, &attributes, start, &run), 0);
    EXPECT_EQ(pthread_join(thread, nullptr), 0);
    pthread_attr_destroy(&attributes);
    return run.used;
}

// What the tcp core takes by itself to look at its event queue, which whoever waits does.
size_t stack_of_core() {
    constexpr uint64_t cores_too = 1ULL << 60;
    const std::unique_ptr<fi_info, void (*)(fi_info*)> hints(fi_allocinfo(), fi_freeinfo);
    hints->fabric_attr->prov_name = strdup("tcp");
    hints->ep_attr->type = FI_EP_MSG;
    fi_info* found = nullptr;
    EXPECT_EQ(fi_getinfo(FI_VERSION(1, 14), "127.0.0.1", nullptr, cores_too, hints.get(), &found), 0);
    const std::unique_ptr<fi_info, void (*)(fi_info*)> info(found, fi_freeinfo);
    fid_fabric* fabric = nullptr;
    EXPECT_EQ(fi_fabric(info->fabric_attr, &fabric, nullptr), 0);
    fid_eq* eq = nullptr;
    fi_eq_attr attr{};
    attr.wait_obj = FI_WAIT_FD;
    EXPECT_EQ(fi_eq_open(fabric, &attr, &eq, nullptr), 0);
    const size_t used = stack_of([&] {
        uint32_t event = 0;
        fi_eq_cm_entry entry{};
        (void)fi_eq_read(eq, &event, &entry, sizeof(entry), 0);
    });
    fi_close(&eq->fid);
    fi_close(&fabric->fid);
    printf("# stack of the core: %zu bytes\n", used);
    return used;
}

void test_calls_take_little_stack() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    throw Skip("a sanitizer's frames are larger");
#endif
    const Ends ends = connected();
    const Number set(repoll_create(0));
    epoll_event event{};
    event.events = EPOLLIN;
    EXPECT_EQ(repoll_ctl(set, EPOLL_CTL_ADD, ends.server, &event), 0);
    static std::array<char, 100000> bytes;
    set_timeout(ends.client, 1);
    struct Case {
        const char* name;
        std::function<void()> body;
    };
    const Case cases[] = {
        {"nothing", [] {}},
        {"rsend, rrecv",
         [&] {
             rsend(ends.client, bytes.data(), 100, 0);
             rrecv(ends.server, bytes.data(), 100, MSG_WAITALL);
         }},
        {"rsend, rrecv, MSG_DONTWAIT",
         [&] {
             rsend(ends.client, bytes.data(), 100, MSG_DONTWAIT);
             rrecv(ends.server, bytes.data(), 100, MSG_DONTWAIT);
         }},
        {"rrecv, waiting", [&] { rrecv(ends.client, bytes.data(), 1, 0); }},
        {"rrecv, MSG_TRUNC",
         [&] {
             rsend(ends.client, bytes.data(), 40000, 0);
             rrecv(ends.server, nullptr, 40000, MSG_TRUNC);
         }},
        {"rpoll",
         [&] {
             pollfd fds[] = {{ends.client, POLLIN, 0}, {ends.server, POLLIN, 0}};
             rpoll(fds, 2, 20);
         }},
        {"rselect",
         [&] {
             timeval time{0, 20000};
             fd_set in;
             FD_ZERO(&in);
             FD_SET(ends.server, &in);
             rselect(ends.server + 1, &in, nullptr, nullptr, &time);
         }},
        {"repoll_wait",
         [&] {
             epoll_event told{};
             repoll_wait(set, &told, 1, 20);
         }},
    };
    const size_t nothing = stack_of(cases[0].body);
    [[maybe_unused]] const size_t limit = 4096 + stack_of_core() - nothing;
    for (const Case& one : cases) {
        const size_t used = stack_of(one.body);
        const size_t more = used - std::min(used, nothing);
        printf("# stack of %s: %zu bytes\n", one.name, more);
#ifdef __OPTIMIZE__
        EXPECT(more <= limit);
#endif
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_a_signal_ends_a_call_that_looks_for_long), // first
        FABTEST(test_no_signal_just_before_the_sleep_is_slept_through),
        FABTEST(test_the_mask_of_the_program_holds_during_a_sleep),
        FABTEST(test_a_handler_sends_while_its_thread_sleeps_in_a_call),
        FABTEST(test_calls_in_a_handler_never_wait_for_what_they_interrupt),
        FABTEST(test_a_handler_of_sigpipe_may_call),
        FABTEST(test_a_handler_in_a_ppoll_without_time_may_call),
        FABTEST(test_calls_take_little_stack),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
