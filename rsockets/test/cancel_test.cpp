// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Threads that are cancelled in a call: it ends there as POSIX has it, clean-up handlers run, and the socket and all
// locks stay as they were.
#include <atomic>
#include <cstdio>
#include <functional>
#include <string>

#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "rsockets/test/asleep.hpp"
#include "rsockets/test/sockets.hpp"

namespace {

using namespace fabtests;
using namespace rsocket_test;

using Body = std::function<void()>;

// A thread that runs a body in which it can be cancelled.
class Cancelled {
  public:
    explicit Cancelled(Body body) : body_(std::move(body)) {
        EXPECT_EQ(pthread_create(
                      &thread_, nullptr, [](void* self) { return static_cast<Cancelled*>(self)->run(); }, this),
                  0);
        while (id_.load() == 0) {
            sched_yield();
        }
    }
    [[nodiscard]] long id() const { return id_.load(); }
    void cancel() { EXPECT_EQ(pthread_cancel(thread_), 0); }
    // Whether it ended by that, behind its clean-up handlers.
    bool join() {
        void* result = nullptr;
        EXPECT_EQ(pthread_join(thread_, &result), 0);
        EXPECT_EQ(result == PTHREAD_CANCELED, cleaned_up_.load());
        return result == PTHREAD_CANCELED;
    }

  private:
    void* run() {
        pthread_cleanup_push([](void* self) { static_cast<Cancelled*>(self)->cleaned_up_.store(true); }, this);
        id_.store(syscall(SYS_gettid));
        body_();
        pthread_cleanup_pop(0);
        return nullptr;
    }

    Body body_;
    pthread_t thread_{};
    std::atomic<long> id_{0};
    std::atomic<bool> cleaned_up_{false};
};

void expect_sound(const Ends& ends) {
    send_all(ends.client, "to the server");
    EXPECT_EQ(received(ends.server, 13), "to the server");
    send_all(ends.server, "to the client");
    EXPECT_EQ(received(ends.client, 13), "to the client");
}

// That sleeps: once the request comes, and if it is pending before the call.
void expect_cancellation_point(const Body& body) {
    Cancelled sleeper(body);
    await_thread_asleep(sleeper.id());
    sleeper.cancel();
    EXPECT(sleeper.join());
    Cancelled pending([&body] {
        EXPECT_EQ(pthread_cancel(pthread_self()), 0);
        body();
    });
    EXPECT(pending.join());
}

void test_receiving_can_be_cancelled() {
    const Ends ends = connected();
    char byte = 0;
    iovec iov{&byte, 1};
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    const Body calls[] = {
        [&] { rrecv(ends.server, &byte, 1, 0); },
        [&] { rrecv(ends.server, &byte, 1, MSG_WAITALL); },
        [&] { rrecvfrom(ends.server, &byte, 1, MSG_PEEK, nullptr, nullptr); },
        [&] { rrecvmsg(ends.server, &message, 0); },
        [&] { rread(ends.server, &byte, 1); },
        [&] { rreadv(ends.server, &iov, 1); },
    };
    for (const Body& call : calls) {
        expect_cancellation_point(call);
        expect_sound(ends);
    }
}

void test_waiting_can_be_cancelled() {
    const Ends ends = connected();
    const Number set(repoll_create(0));
    epoll_event event{};
    event.events = EPOLLIN;
    EXPECT_EQ(repoll_ctl(set, EPOLL_CTL_ADD, ends.server, &event), 0);
    pollfd one{ends.server, POLLIN, 0};
    pollfd kernels{STDERR_FILENO, POLLIN, 0};
    kernels.fd = -1;
    const Body calls[] = {
        [&] { rpoll(&one, 1, -1); },
        [&] { rpoll(&kernels, 1, -1); },
        [&] { rppoll(&one, 1, nullptr, nullptr); },
        [&] {
            fd_set in;
            FD_ZERO(&in);
            FD_SET(ends.server, &in);
            rselect(ends.server + 1, &in, nullptr, nullptr, nullptr);
        },
        [&] {
            epoll_event told{};
            repoll_wait(set, &told, 1, -1);
        },
    };
    for (const Body& call : calls) {
        expect_cancellation_point(call);
        expect_sound(ends);
    }
}

void test_accepting_can_be_cancelled() {
    const Number from = listener();
    expect_cancellation_point([&] { raccept(from, nullptr, nullptr); });
    const Number client = connected_to(port_of(from));
    const Number server(raccept(from, nullptr, nullptr));
    EXPECT(server >= 0);
}

// What it had sent by then arrives.
void test_sending_can_be_cancelled() {
    const Ends ends = connected();
    const std::string much(4 << 20, 'x');
    Cancelled sleeper([&] { rsend(ends.client, much.data(), much.size(), MSG_NOSIGNAL); });
    await_thread_asleep(sleeper.id());
    sleeper.cancel();
    EXPECT(sleeper.join());
    EXPECT_EQ(rshutdown(ends.client, SHUT_WR), 0);
    size_t got = 0;
    for (;;) {
        std::string part = received(ends.server, 100000);
        if (part.empty()) {
            break;
        }
        EXPECT_EQ(part, std::string(part.size(), 'x'));
        got += part.size();
    }
    EXPECT(got > 0 && got < much.size());
}

void test_calls_do_not_end_where_cancellation_is_disabled() {
    const Ends ends = connected();
    std::string got;
    Cancelled sleeper([&] {
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
        got = received(ends.server, 5);
    });
    await_thread_asleep(sleeper.id());
    sleeper.cancel();
    send_all(ends.client, "hello");
    EXPECT(!sleeper.join());
    EXPECT_EQ(got, "hello");
}

// At any moment of a call, with a lock or without.
void test_threads_are_cancelled_at_any_moment() {
    const Ends ends = connected();
    const Ends quiet = connected();
    Threads threads;
    threads.start([&] {
        std::string buffer(70000, '\0');
        while (rrecv(ends.server, buffer.data(), buffer.size(), 0) > 0) {
        }
    });
    try {
        for (int i = 0; i < 300; ++i) {
            Cancelled busy([&, i] {
                const std::string bytes(static_cast<size_t>(1 + i * 37), 'x');
                for (;;) {
                    rsend(ends.client, bytes.data(), bytes.size(), MSG_NOSIGNAL);
                    pollfd fds[] = {{ends.client, POLLOUT, 0}, {quiet.client, POLLIN, 0}};
                    rpoll(fds, 2, i % 2);
                    char byte = 0;
                    rrecv(quiet.client, &byte, 1, i % 3 == 0 ? 0 : MSG_DONTWAIT);
                }
            });
            for (int spin = 0; spin < i * 100 % 5000; ++spin) {
                sched_getcpu();
            }
            busy.cancel();
            EXPECT(busy.join());
        }
    } catch (...) {
        rshutdown(ends.client, SHUT_RDWR);
        throw;
    }
    rshutdown(ends.client, SHUT_WR);
    threads.join();
    expect_sound(quiet);
}

} // namespace

int main() {
#ifdef __SANITIZE_THREAD__
    // It goes on to ignore what a thread does once it was cancelled in a call that blocks, such as its locks.
    puts("1..0 # SKIP ThreadSanitizer does not follow pthread_cancel");
    return 0;
#endif
    const CMUnitTest tests[] = {
        FABTEST(test_receiving_can_be_cancelled),
        FABTEST(test_waiting_can_be_cancelled),
        FABTEST(test_accepting_can_be_cancelled),
        FABTEST(test_sending_can_be_cancelled),
        FABTEST(test_calls_do_not_end_where_cancellation_is_disabled),
        FABTEST(test_threads_are_cancelled_at_any_moment),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
