// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Signal handlers that interrupt the library in the middle of moving bytes, and use the same connection, or make
// children and wait for them; and sends that wait for space in TCP. interrupted_test.sh runs it under the preload
// library.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <functional>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "preload/test/pair.hpp"
#include "preload/test/wakeup_parts/sleeper.hpp"

namespace {

using preload_test::Pair;

// A thread whose alternate signal stack lies directly above its own stack.
class ThreadBelowStack {
  public:
    explicit ThreadBelowStack(std::function<void()> body)
        : body_(std::move(body)), memory_(static_cast<char*>(mmap(nullptr, 2 * size, PROT_READ | PROT_WRITE,
                                                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0))) {
        EXPECT(memory_ != MAP_FAILED);
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        EXPECT_EQ(pthread_attr_setstack(&attributes, memory_, size), 0);
        const auto begin = [](void* of) -> void* {
            auto* own = static_cast<ThreadBelowStack*>(of);
            stack_t alternate{};
            alternate.ss_sp = own->memory_ + size;
            alternate.ss_size = size;
            sigaltstack(&alternate, nullptr);
            own->body_();
            return nullptr;
        };
        EXPECT_EQ(pthread_create(&thread_, &attributes, begin, this), 0);
        pthread_attr_destroy(&attributes);
    }
    ThreadBelowStack(const ThreadBelowStack&) = delete;
    ThreadBelowStack& operator=(const ThreadBelowStack&) = delete;
    ~ThreadBelowStack() {
        pthread_join(thread_, nullptr);
        munmap(memory_, 2 * size);
    }
    [[nodiscard]] pthread_t id() const { return thread_; }

  private:
    static constexpr size_t size = size_t{256} << 10;
    std::function<void()> body_;
    char* memory_;
    pthread_t thread_{};
};

// Counts what is received until EOF.
class Reader {
  public:
    explicit Reader(int fd)
        : thread_([this, fd] {
              std::vector<char> bytes(size_t{64} << 10);
              ssize_t n = 0;
              while ((n = recv(fd, bytes.data(), bytes.size(), 0)) > 0) {
                  const auto found = std::count(bytes.begin(), bytes.begin() + n, 'h');
                  of_handlers += found;
                  others += n - found;
              }
              error = n < 0 ? errno : 0;
          }) {}
    void join() { thread_.join(); }

    long of_handlers = 0;
    long others = 0;
    int error = 0;

  private:
    std::thread thread_;
};

int used_fd = -1;
std::atomic<int> handled{0};
std::atomic<int> sent_by_handlers{0};
std::atomic<int> refused{0};
std::atomic<int> failed_children{0};
std::atomic<bool> is_writing{false};

class Handler {
  public:
    Handler(void (*handle)(int), int flags) {
        handled = sent_by_handlers = refused = failed_children = 0;
        is_writing = false;
        struct sigaction action {};
        action.sa_handler = handle;
        action.sa_flags = flags;
        EXPECT_EQ(sigaction(SIGUSR1, &action, nullptr), 0);
    }
    Handler(const Handler&) = delete;
    Handler& operator=(const Handler&) = delete;
    ~Handler() { signal(SIGUSR1, SIG_DFL); }
};

// Writes to the connection until told to end, and does not sleep: a signal is to interrupt the library while it moves
// bytes. Returns how many bytes, or -errno.
long write_until(int fd, const std::atomic<bool>& over) {
    static const std::vector<char> bytes(size_t{32} << 10, 'w');
    long written = 0;
    is_writing = true; // from now on, no handler finds malloc interrupted, which fork waits for
    while (!over) {
        const ssize_t n = send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0) {
            written += n;
        } else if (errno == EAGAIN) {
            sched_yield();
        } else {
            return -errno;
        }
    }
    return written;
}

// Interrupts the thread so many times, each time after the handler has returned.
void interrupt(pthread_t thread, int times, const std::atomic<bool>& ended) {
    while (!is_writing) {
        sched_yield();
    }
    for (int i = 0; i < times && !ended && failed_children == 0; ++i) {
        const int before = handled;
        pthread_kill(thread, SIGUSR1);
        while (handled == before && !ended) {
            sched_yield();
        }
        usleep(static_cast<useconds_t>(i) % 64); // anywhere in the call
    }
}

void send_in_handler(int /*signal*/) {
    const int saved = errno;
    const char byte = 'h';
    ++(send(used_fd, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1 ? sent_by_handlers : refused);
    ++handled;
    errno = saved;
}

void test_a_handler_on_a_stack_above_does_not_send_in_between() {
    constexpr int times = 10000;
    Pair pair;
    used_fd = pair.a;
    const Handler handler(send_in_handler, SA_RESTART | SA_ONSTACK);
    Reader reader(pair.b);
    std::atomic<bool> over{false};
    std::atomic<bool> failed{false};
    long written = 0;
    {
        const ThreadBelowStack writer([&] {
            written = write_until(pair.a, over);
            failed = written < 0;
            shutdown(pair.a, SHUT_WR);
        });
        interrupt(writer.id(), times, failed);
        over = true;
    }
    reader.join();
    EXPECT_EQ(reader.error, 0);
    EXPECT_EQ(reader.others, written);
    EXPECT_EQ(reader.of_handlers, sent_by_handlers.load());
#ifndef __SANITIZE_THREAD__     // it defers signals
    EXPECT(refused.load() > 0); // it has interrupted the library
#endif
}

// Until TCP is full, too, which the library waits for in another way than for memory.
void fill(const Pair& pair) {
    constexpr int for_good = 100;
    const std::vector<char> bytes(size_t{64} << 10, 'f');
    for (int refused_in_a_row = 0; refused_in_a_row < for_good;) {
        const bool sends = send(pair.a, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0;
        refused_in_a_row = sends || preload_test::path_of(pair.a) == 3 ? 0 : refused_in_a_row + 1;
        if (!sends) {
            usleep(1000);
        }
    }
}

// What a blocking send returns in which a handler with these flags runs several times; then there is space.
int error_of_interrupted_send(int flags) {
    struct sigaction another {}; // which does not run
    another.sa_handler = [](int) {};
    another.sa_flags = SA_RESTART ^ flags;
    EXPECT_EQ(sigaction(SIGUSR2, &another, nullptr), 0);
    const Pair pair;
    fill(pair);
    const Handler handler([](int) { ++handled; }, flags);
    std::atomic<pid_t> sender{0};
    std::atomic<bool> over{false};
    int error = 0;
    std::thread thread([&] {
        sender = gettid();
        error = send(pair.a, "x", 1, MSG_NOSIGNAL) == 1 ? 0 : errno;
        over = true;
    });
    constexpr int times = 5;
    for (int i = 0; i < times && !over; ++i) {
        EXPECT(wakeup_test::eventually(
            [&] { return over || (sender != 0 && wakeup_test::is_thread_asleep(sender.load())); }));
        const int before = handled;
        pthread_kill(thread.native_handle(), SIGUSR1);
        EXPECT(wakeup_test::eventually([&] { return over || handled != before; }));
    }
    std::vector<char> some(size_t{64} << 10);
    while (!over) {
        (void)recv(pair.b, some.data(), some.size(), MSG_DONTWAIT);
    }
    thread.join();
    return error;
}

void test_a_send_that_waits_for_tcp_is_restarted() { EXPECT_EQ(error_of_interrupted_send(SA_RESTART), 0); }
void test_a_send_that_waits_for_tcp_is_interrupted() { EXPECT_EQ(error_of_interrupted_send(0), EINTR); }

// A sanitizer does not survive that a process with threads forks.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// What a handler's child does; true: it executes a program then.
bool (*before_execution)() = nullptr;

// As of programs that run a debugger or a script when they get a signal.
void run_in_handler(int /*signal*/) {
    const int saved = errno;
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGALRM, SIG_DFL);
        alarm(static_cast<unsigned>(fabtests::patience(10000)) / 1000); // a child that hangs is a failure, too
        if (!before_execution()) {
            _exit(0);
        }
        execl("/bin/true", "true", nullptr);
        _exit(1);
    }
    int status = -1;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    failed_children += status == 0 ? 0 : 1;
    ++handled;
    errno = saved;
}

// Runs children in handlers that interrupt a thread which writes, on `rounds` connections after each other.
void expect_children_end(int rounds, int times, bool inherited, bool (*before)()) {
    before_execution = before;
    for (int round = 0; round < rounds; ++round) {
        Pair pair;
        used_fd = pair.a;
        if (inherited) {
            fcntl(pair.a, F_SETFD, 0);
        }
        const Handler handler(run_in_handler, SA_RESTART);
        Reader reader(pair.b);
        std::atomic<bool> over{false};
        std::atomic<bool> failed{false};
        long written = 0;
        std::thread writer([&] {
            written = write_until(pair.a, over);
            failed = written < 0;
            shutdown(pair.a, SHUT_WR);
        });
        interrupt(writer.native_handle(), times, failed);
        over = true;
        writer.join();
        reader.join();
        EXPECT_EQ(failed_children.load(), 0);
        EXPECT_EQ(reader.error, 0);
        EXPECT_EQ(reader.others, written);
    }
}

void test_a_child_of_a_handler_closes_the_connection_and_executes_a_program() {
    expect_children_end(2, 30, false, [] {
        for (int fd = 3; fd < 64; ++fd) {
            close(fd);
        }
        return true;
    });
}

void test_a_child_of_a_handler_executes_a_program_with_it() {
    expect_children_end(10, 3, true, [] { return true; }); // the connection returns to the kernel
}

void test_a_child_of_a_handler_exits() {
    expect_children_end(2, 30, false, [] { return false; });
}

// It finds the lock of the interrupted section taken.
void test_a_child_of_a_handler_does_not_send_in_between() {
    expect_children_end(2, 30, false, [] {
        const char byte = 'h';
        (void)send(used_fd, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        return false;
    });
}
#endif

// It waits for space in TCP, and leaves bytes unread in memory, with more behind them in TCP: those are no reason to
// wake up. Asleep each time it is looked at.
void test_a_sender_sleeps_though_its_own_bytes_are_unread() {
    const Pair pair;
    preload_test::send_all(pair.b, "in memory");
    wakeup_test::Sleeper sender([&] {
        const std::vector<char> bytes(size_t{64} << 20);
        return send(pair.a, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    });
    size_t sent = 9;
    EXPECT(wakeup_test::eventually([&] { // rings are left: one is full, and the other end has asked for that
        preload_test::send_all(pair.b, "x");
        ++sent;
        usleep(1000);
        return preload_test::path_of(pair.a) < 3 && preload_test::path_of(pair.b) < 3;
    }));
    preload_test::send_all(pair.b, "by TCP");
    sent += 6;
    EXPECT(wakeup_test::eventually([&] {
        int asleep = 0;
        while (asleep < 100 && sender.is_asleep()) {
            usleep(500);
            ++asleep;
        }
        return asleep == 100;
    }));
    EXPECT_EQ(preload_test::receive(pair.a, sent, MSG_WAITALL).size(), sent);
    EXPECT_EQ(shutdown(pair.a, SHUT_RDWR), 0);
    (void)sender.result();
}

} // namespace

int main() {
#ifdef __SANITIZE_THREAD__
    printf("1..0 # SKIP interrupted_test: ThreadSanitizer defers signals\n");
    return 0;
#endif
    const CMUnitTest tests[] = {
        FABTEST(test_a_handler_on_a_stack_above_does_not_send_in_between),
        FABTEST(test_a_send_that_waits_for_tcp_is_restarted),
        FABTEST(test_a_send_that_waits_for_tcp_is_interrupted),
        FABTEST(test_a_sender_sleeps_though_its_own_bytes_are_unread),
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        FABTEST(test_a_child_of_a_handler_closes_the_connection_and_executes_a_program),
        FABTEST(test_a_child_of_a_handler_executes_a_program_with_it),
        FABTEST(test_a_child_of_a_handler_exits),
        FABTEST(test_a_child_of_a_handler_does_not_send_in_between),
#endif
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
