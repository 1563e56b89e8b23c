// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Everything that ends a blocking call, when the thread sleeps on an eventfd alone and the service watches the socket
// for it.
#include <atomic>
#include <csignal>
#include <functional>
#include <memory>

#include "preload/test/pair.hpp"
#include "preload/test/wakeup_parts/cases.hpp"
#include "preload/test/wakeup_parts/peer.hpp"
#include "preload/test/wakeup_parts/sleeper.hpp"

namespace wakeup_test {

namespace {

using preload_test::path_of;

enum class Number { first, duplicate }; // a duplicate: the number that the connection was made with is closed

// A connection to a peer process on which this end has slept often enough to be guarded.
class Line {
  public:
    explicit Line(Number number) {
        fd_ = peer_.fd();
        if (number == Number::duplicate) {
            fd_ = dup(peer_.fd());
            EXPECT(fd_ >= 0);
        }
        // The guard takes effect some time after it was asked for.
        constexpr int least = 24;
        bool guarded = false;
        for (int i = 0; i < least || !guarded; ++i) {
            constexpr int most = 2000;
            EXPECT(i < most);
            Sleeper sleeper([this] { return receive(); });
            sleeper.await_asleep();
            guarded = sleeper.is_on_eventfd();
            EXPECT_EQ(peer_.ask(Do::send, 1), 1);
            EXPECT_EQ(sleeper.result(), 1);
        }
        if (number == Number::duplicate) {
            peer_.close_own();
        } else {
            own_ = false;
        }
    }
    Line(const Line&) = delete;
    Line& operator=(const Line&) = delete;
    ~Line() {
        if (own_) {
            close(fd_);
        }
    }
    [[nodiscard]] ssize_t receive() const {
        char byte = 0;
        return recv(fd_, &byte, 1, 0);
    }
    [[nodiscard]] ssize_t send_one() const { return send(fd_, "y", 1, MSG_NOSIGNAL); }
    // Until one more byte would block.
    void fill() const {
        std::vector<char> bytes(65536);
        while (send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
        }
        while (send(fd_, bytes.data(), 1, MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
        }
        EXPECT_EQ(path_of(fd_), 3);
    }
    [[nodiscard]] Peer& peer() { return peer_; }
    [[nodiscard]] int fd() const { return fd_; }

  private:
    Peer peer_;
    int fd_ = -1;
    bool own_ = true;
};

std::atomic<int> handled{0};

void handle(int flags) {
    struct sigaction action {};
    action.sa_handler = [](int) { ++handled; };
    action.sa_flags = flags;
    EXPECT_EQ(sigaction(SIGUSR2, &action, nullptr), 0);
    handled = 0;
}

// For both numbers: a thread falls asleep in the call, on an eventfd; then, body.
void with_sleeper(bool sends, const std::function<void(Line&, Sleeper&)>& body) {
    for (const Number number : {Number::first, Number::duplicate}) {
        Line line(number);
        if (sends) {
            line.fill();
        }
        Sleeper sleeper([&] { return sends ? line.send_one() : line.receive(); });
        sleeper.await_asleep();
        EXPECT(sleeper.is_on_eventfd() || number == Number::duplicate);
        body(line, sleeper);
    }
}

void expect_receive(ssize_t wanted, const std::function<void(Line&)>& event) {
    with_sleeper(false, [&](Line& line, Sleeper& sleeper) {
        event(line);
        const ssize_t result = sleeper.result();
        EXPECT_EQ(result < 0 ? sleeper.error() : 0, 0);
        EXPECT_EQ(result, wanted);
    });
}

void test_recv_ends_by_data() {
    expect_receive(1, [](Line& line) { EXPECT_EQ(line.peer().ask(Do::send, 1), 1); });
}
void test_recv_ends_by_the_peers_shutdown() {
    expect_receive(0, [](Line& line) { EXPECT_EQ(line.peer().ask(Do::shut), 0); });
}
void test_recv_ends_by_the_peers_close() {
    expect_receive(0, [](Line& line) { EXPECT_EQ(line.peer().ask(Do::close), 0); });
}
void test_recv_ends_when_the_peer_is_killed() {
    expect_receive(0, [](Line& line) { line.peer().kill(SIGKILL); });
}
void test_recv_ends_by_shutdown_of_reading() {
    expect_receive(0, [](Line& line) { EXPECT_EQ(shutdown(line.fd(), SHUT_RD), 0); });
}
void test_recv_ends_by_shutdown_of_both() {
    expect_receive(0, [](Line& line) { EXPECT_EQ(shutdown(line.fd(), SHUT_RDWR), 0); });
}

// A handler runs, and the call sleeps on until the event.
void expect_restarted(bool sends, const std::function<void(Line&)>& event) {
    with_sleeper(sends, [&](Line& line, Sleeper& sleeper) {
        handle(SA_RESTART);
        for (int i = 1; i <= 20; ++i) {
            sleeper.signal(SIGUSR2);
            EXPECT(eventually([&] { return handled == i; }));
            sleeper.await_asleep();
        }
        event(line);
        EXPECT_EQ(sleeper.result(), 1);
    });
    signal(SIGUSR2, SIG_DFL);
}

void expect_interrupted(bool sends) {
    with_sleeper(sends, [&](Line& line, Sleeper& sleeper) {
        handle(0);
        sleeper.signal(SIGUSR2);
        EXPECT_EQ(sleeper.result(), -1);
        EXPECT_EQ(sleeper.error(), EINTR);
        EXPECT_EQ(handled.load(), 1);
        if (!sends) {
            line.peer().tell(Do::echo, 1); // it goes on
            EXPECT_EQ(line.send_one(), 1);
            EXPECT_EQ(line.receive(), 1);
            EXPECT_EQ(line.peer().answer(), 1);
        }
    });
    signal(SIGUSR2, SIG_DFL);
}

void test_a_signal_interrupts_recv() { expect_interrupted(false); }
void test_a_signal_with_restart_leaves_recv_asleep() {
    expect_restarted(false, [](Line& line) { EXPECT_EQ(line.peer().ask(Do::send, 1), 1); });
}
void test_a_signal_interrupts_send() { expect_interrupted(true); }
void test_a_signal_with_restart_leaves_send_asleep() {
    expect_restarted(true, [](Line& line) { EXPECT(line.peer().ask(Do::drain) > 0); });
}

// Many times, since a descriptor that is not given back would be missing.
void expect_canceled(bool sends) {
    Line line(Number::first);
    if (sends) {
        line.fill();
    }
    const auto call = [&] { return sends ? line.send_one() : line.receive(); };
    constexpr int times = 80;
    for (int i = 0; i < times; ++i) {
        Sleeper sleeper(call);
        sleeper.await_asleep();
        sleeper.cancel();
    }
    Sleeper last(call);
    last.await_asleep();
    EXPECT(last.is_on_eventfd());
    EXPECT(line.peer().ask(sends ? Do::drain : Do::send, 1) > 0);
    EXPECT_EQ(last.result(), 1);
}

void test_a_thread_is_canceled_in_recv_on_an_eventfd() { expect_canceled(false); }
void test_a_thread_is_canceled_in_send_on_an_eventfd() { expect_canceled(true); }

void expect_send(const std::function<void(Line&)>& event, const std::function<void(Sleeper&)>& expect) {
    with_sleeper(true, [&](Line& line, Sleeper& sleeper) {
        event(line);
        expect(sleeper);
    });
}

void is_sent(Sleeper& sleeper) { EXPECT_EQ(sleeper.result(), 1); }
void is_broken(Sleeper& sleeper) {
    EXPECT_EQ(sleeper.result(), -1);
    EXPECT(sleeper.error() == EPIPE || sleeper.error() == ECONNRESET);
}

void test_send_ends_by_space() {
    expect_send([](Line& line) { EXPECT(line.peer().ask(Do::drain) > 0); }, is_sent);
}
// Which ends nothing in this direction.
void test_send_sleeps_on_after_the_peers_shutdown() {
    expect_send(
        [](Line& line) {
            EXPECT_EQ(line.peer().ask(Do::shut), 0);
            EXPECT(line.peer().ask(Do::drain) > 0);
        },
        is_sent);
}
void test_send_ends_by_the_peers_close() {
    expect_send([](Line& line) { EXPECT_EQ(line.peer().ask(Do::close), 0); }, is_broken);
}
// Nobody resets the connection for a process that has no time to: TCP may take one more byte.
void test_send_ends_when_the_peer_is_killed() {
    with_sleeper(true, [&](Line& line, Sleeper& sleeper) {
        line.peer().kill(SIGKILL);
        if (sleeper.result() == 1) {
            EXPECT(eventually([&] { return line.send_one() < 0; }));
        } else {
            is_broken(sleeper);
        }
    });
}
void test_send_ends_by_shutdown_of_both() {
    expect_send([](Line& line) { EXPECT_EQ(shutdown(line.fd(), SHUT_RDWR), 0); }, is_broken);
}
void test_send_ends_by_shutdown_of_writing() {
    expect_send([](Line& line) { EXPECT_EQ(shutdown(line.fd(), SHUT_WR), 0); }, is_broken);
}
void test_send_sleeps_on_after_shutdown_of_reading() {
    expect_send(
        [](Line& line) {
            EXPECT_EQ(shutdown(line.fd(), SHUT_RD), 0);
            EXPECT(line.peer().ask(Do::drain) > 0);
        },
        is_sent);
}

// A thread in send and one in recv, neither of which can go on: each is woken by its own event.
void test_recv_and_send_asleep_on_one_connection() {
    for (const bool data_first : {true, false}) {
        Line line(Number::first);
        line.fill();
        Sleeper receiver([&] { return line.receive(); });
        receiver.await_asleep();
        Sleeper sender([&] { return line.send_one(); });
        sender.await_asleep();
        for (const bool data : {data_first, !data_first}) {
            EXPECT(line.peer().ask(data ? Do::send : Do::drain, 1) > 0);
            EXPECT_EQ((data ? receiver : sender).result(), 1);
        }
    }
}

// Lower bound: what was asked for. Upper: generous.
void expect_time_limit(Line& line, int option) {
    constexpr int limit_ms = 150;
    const timeval limit{0, limit_ms * 1000};
    EXPECT_EQ(setsockopt(line.fd(), SOL_SOCKET, option, &limit, sizeof(limit)), 0);
    for (int i = 0; i < 5; ++i) {
        const auto start = fabtests::Clock::now();
        Sleeper sleeper([&] { return option == SO_RCVTIMEO ? line.receive() : line.send_one(); });
        EXPECT_EQ(sleeper.result(), -1);
        EXPECT_EQ(sleeper.error(), EAGAIN);
        EXPECT(fabtests::milliseconds_since(start) >= limit_ms - 10);
        EXPECT(fabtests::milliseconds_since(start) < patience_ms() / 2);
    }
}

void test_a_time_limit_that_is_set_after_sleeps_ends_recv() {
    Line line(Number::first);
    expect_time_limit(line, SO_RCVTIMEO);
}

void test_a_time_limit_that_is_set_after_sleeps_ends_send() {
    Line line(Number::first);
    line.fill();
    expect_time_limit(line, SO_SNDTIMEO);
}

// The socket has it before it is connected, and an accepted one from its listener.
void test_a_time_limit_that_is_set_before_connect_and_accept_ends_recv() {
    constexpr int limit_ms = 150;
    const timeval limit{0, limit_ms * 1000};
    const preload_test::Listener listener;
    EXPECT_EQ(setsockopt(listener.fd(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
    const int a = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
    (void)listener.connect(a);
    const int b = listener.accept();
    const auto exchange = [&](int from, int to) {
        char byte = 'x';
        EXPECT_EQ(send(from, &byte, 1, 0), 1);
        EXPECT_EQ(recv(to, &byte, 1, 0), 1);
    };
    EXPECT(eventually([&] {
        exchange(a, b);
        exchange(b, a);
        return path_of(a) == 3 && path_of(b) == 3;
    }));
    for (int i = 0; i < 24; ++i) {
        for (const int fd : {a, b}) {
            const auto start = fabtests::Clock::now();
            char byte = 0;
            Sleeper sleeper([&] { return recv(fd, &byte, 1, 0); });
            if (i < 20) {
                sleeper.await_asleep();
                EXPECT_EQ(send(fd == a ? b : a, "z", 1, 0), 1);
                EXPECT_EQ(sleeper.result(), 1);
                continue;
            }
            EXPECT_EQ(sleeper.result(), -1);
            EXPECT_EQ(sleeper.error(), EAGAIN);
            EXPECT(fabtests::milliseconds_since(start) >= limit_ms - 10);
        }
    }
    close(a);
    close(b);
}

} // namespace

std::vector<CMUnitTest> ended_cases() {
    return {
        FABTEST(test_recv_ends_by_data),
        FABTEST(test_recv_ends_by_the_peers_shutdown),
        FABTEST(test_recv_ends_by_the_peers_close),
        FABTEST(test_recv_ends_when_the_peer_is_killed),
        FABTEST(test_recv_ends_by_shutdown_of_reading),
        FABTEST(test_recv_ends_by_shutdown_of_both),
        FABTEST(test_a_signal_interrupts_recv),
        FABTEST(test_a_signal_with_restart_leaves_recv_asleep),
        FABTEST(test_a_thread_is_canceled_in_recv_on_an_eventfd),
        FABTEST(test_send_ends_by_space),
        FABTEST(test_send_sleeps_on_after_the_peers_shutdown),
        FABTEST(test_send_ends_by_the_peers_close),
        FABTEST(test_send_ends_when_the_peer_is_killed),
        FABTEST(test_send_ends_by_shutdown_of_both),
        FABTEST(test_send_ends_by_shutdown_of_writing),
        FABTEST(test_send_sleeps_on_after_shutdown_of_reading),
        FABTEST(test_a_signal_interrupts_send),
        FABTEST(test_a_signal_with_restart_leaves_send_asleep),
        FABTEST(test_a_thread_is_canceled_in_send_on_an_eventfd),
        FABTEST(test_recv_and_send_asleep_on_one_connection),
        FABTEST(test_a_time_limit_that_is_set_after_sleeps_ends_recv),
        FABTEST(test_a_time_limit_that_is_set_after_sleeps_ends_send),
        FABTEST(test_a_time_limit_that_is_set_before_connect_and_accept_ends_recv),
    };
}

} // namespace wakeup_test
