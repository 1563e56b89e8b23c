// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Members of an epoll set that are closed, removed, or not alone with their data, and two threads that wait for one of
// them: what the kernel reports, and no more. set_members_test.sh runs it under the preload library.
#include <array>
#include <atomic>
#include <csignal>
#include <future>
#include <thread>

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/syscall.h>

#include "preload/test/pair.hpp"
#include "rsockets/test/asleep.hpp"

namespace {

using preload_test::Connected;
using preload_test::Pair;

class Set {
  public:
    Set() = default;
    Set(const Set&) = delete;
    Set& operator=(const Set&) = delete;
    ~Set() { close(); }
    void close() {
        if (fd_ >= 0) {
            ::close(std::exchange(fd_, -1));
        }
    }
    [[nodiscard]] int fd() const { return fd_; }
    void add(int fd, uint64_t data, uint32_t events = EPOLLIN) const {
        epoll_event event{};
        event.events = events;
        event.data.u64 = data;
        EXPECT_EQ(epoll_ctl(fd_, EPOLL_CTL_ADD, fd, &event), 0);
    }
    void remove(int fd) const { EXPECT_EQ(epoll_ctl(fd_, EPOLL_CTL_DEL, fd, nullptr), 0); }
    // How many members have events within a time.
    [[nodiscard]] int events(int timeout_ms = 0) const {
        std::array<epoll_event, 4> found{};
        return epoll_wait(fd_, found.data(), found.size(), timeout_ms);
    }

  private:
    int fd_ = epoll_create1(EPOLL_CLOEXEC);
};

constexpr uint64_t some = 4711;

int long_time() { return static_cast<int>(fabtests::patience(10000)); }

// The number of events that a thread gets which sleeps in the set already. 0 also if it was not woken: it finds them
// when its time is over.
class Waiter {
  public:
    explicit Waiter(const Set& set)
        : thread_([this, &set] {
              const auto begin = fabtests::Clock::now();
              id_.set_value(syscall(SYS_gettid));
              const int found = set.events(long_time());
              found_ = fabtests::milliseconds_since(begin) < long_time() / 2 ? found : 0;
          }) {
        await_thread_asleep(id_.get_future().get());
    }
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;
    ~Waiter() {
        if (thread_.joinable()) {
            thread_.join();
        }
    }
    int found() {
        thread_.join();
        return found_;
    }

  private:
    std::promise<long> id_;
    int found_ = -1;
    std::thread thread_;
};

// Both hear of what neither of them reads.
void test_two_threads_hear_of_an_event_by_level() {
    for (int i = 0; i < 50; ++i) {
        const Pair pair;
        const Set set;
        set.add(pair.b, some);
        EXPECT_EQ(set.events(), 0);
        Waiter one(set);
        Waiter other(set);
        EXPECT_EQ(send(pair.a, "x", 1, 0), 1);
        EXPECT_EQ(one.found(), 1);
        EXPECT_EQ(other.found(), 1);
    }
}

void test_all_of_many_sets_hear_of_a_member_that_is_upgraded() {
    constexpr size_t many = 40;
    const Connected pair;
    const std::array<Set, many> sets;
    for (const Set& set : sets) {
        set.add(pair.b, some);
    }
    EXPECT(pair.is_upgraded_soon());
    EXPECT_EQ(send(pair.a, "x", 1, 0), 1);
    int found = 0;
    for (const Set& set : sets) {
        found += set.events();
    }
    EXPECT_EQ(found, static_cast<int>(many));
}

// The kernel has removed it with its socket, which was closed without ever being a connection.
void test_a_socket_is_no_member_because_one_before_it_had_its_number() {
    const Set before;
    const Set set;
    for (const uint32_t events : {uint32_t{EPOLLIN}, EPOLLIN | EPOLLEXCLUSIVE}) {
        const Connected pair([&](int, int number) {
            before.add(number, some, events);
            EXPECT_EQ(close(number), 0);
            EXPECT_EQ(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), number);
            set.add(number, some);
        });
        EXPECT(pair.is_upgraded_soon());
        EXPECT_EQ(send(pair.b, "x", 1, 0), 1);
        EXPECT_EQ(set.events(long_time()), 1);
        EXPECT_EQ(before.events(), 0);
        before.add(pair.a, some, events); // now it is one
        EXPECT_EQ(before.events(long_time()), 1);
        before.remove(pair.a);
    }
}

void test_the_end_of_one_member_is_not_that_of_another_one_with_the_same_data() {
    Pair ended;
    Pair other;
    const Set set;
    set.add(ended.b, some);
    set.add(other.b, some);
    EXPECT_EQ(set.events(), 0);
    close(std::exchange(ended.a, -1));
    EXPECT_EQ(set.events(long_time()), 1);
    other.exchange(); // in memory
    EXPECT_EQ(preload_test::path_of(other.b), 3);
    std::promise<long> id;
    int found = 0;
    std::thread sleeper([&] {
        id.set_value(syscall(SYS_gettid));
        pollfd one{other.b, POLLIN, 0};
        found = poll(&one, 1, long_time());
    });
    await_thread_asleep(id.get_future().get());
    const auto begin = fabtests::Clock::now();
    close(std::exchange(other.a, -1));
    sleeper.join();
    EXPECT_EQ(found, 1);
    EXPECT(fabtests::milliseconds_since(begin) < long_time() / 2);
}

void test_a_nested_set_that_is_closed_is_no_member_any_more() {
    const Pair pair;
    const Set outer;
    {
        const Set inner;
        outer.add(inner.fd(), some);
        inner.add(pair.b, some);
        EXPECT_EQ(outer.events(), 0);
    }
    EXPECT_EQ(send(pair.a, "x", 1, 0), 1);
    for (int i = 0; i < 4; ++i) {
        const Set another;
        another.add(pair.b, some);
        EXPECT_EQ(another.events(long_time()), 1);
        EXPECT_EQ(outer.events(), 0);
    }
}

std::atomic<int> to_close{-1};
void close_it(int /*number*/) {
    if (const int fd = to_close.exchange(-1); fd >= 0) {
        close(fd);
    }
}

// At any moment of a wait in the set around it.
void test_a_nested_set_that_a_signal_handler_closes_is_no_member_any_more() {
    struct sigaction action {};
    struct sigaction before {};
    action.sa_handler = close_it;
    EXPECT_EQ(sigaction(SIGUSR1, &action, &before), 0);
    const Pair pair;
    pair.exchange();
    const pthread_t self = pthread_self();
    for (int i = 0; i < 300; ++i) {
        const Set outer;
        const int inner = epoll_create1(EPOLL_CLOEXEC);
        outer.add(inner, some);
        epoll_event event{};
        event.events = EPOLLIN;
        EXPECT_EQ(epoll_ctl(inner, EPOLL_CTL_ADD, pair.b, &event), 0);
        to_close.store(inner);
        std::thread other([&] {
            usleep(static_cast<useconds_t>(i % 50));
            pthread_kill(self, SIGUSR1);
        });
        while (to_close.load() >= 0) {
            EXPECT_EQ(outer.events(), 0);
        }
        other.join();
        EXPECT_EQ(send(pair.a, "x", 1, 0), 1);
        const Set another;
        another.add(pair.b, some + 1);
        EXPECT_EQ(another.events(long_time()), 1);
        EXPECT_EQ(outer.events(), 0);
        const Set third;
        third.add(pair.b, some + 2);
        EXPECT_EQ(third.events(long_time()), 1);
        EXPECT_EQ(outer.events(), 0);
        EXPECT_EQ(preload_test::receive(pair.b, 1, 0), "x");
    }
    EXPECT_EQ(preload_test::path_of(pair.b), 3);
    EXPECT_EQ(sigaction(SIGUSR1, &before, nullptr), 0);
}

void test_threads_in_all_sets_around_one_hear_of_its_event() {
    const Pair pair;
    for (int i = 0; i < 30; ++i) {
        const Set inner;
        const Set one;
        const Set other;
        inner.add(pair.b, some);
        one.add(inner.fd(), some);
        other.add(inner.fd(), some);
        Waiter first(one);
        Waiter second(other);
        EXPECT_EQ(send(pair.a, "x", 1, 0), 1);
        EXPECT_EQ(first.found(), 1);
        EXPECT_EQ(second.found(), 1);
        EXPECT_EQ(preload_test::receive(pair.b, 1, 0), "x");
    }
    EXPECT_EQ(preload_test::path_of(pair.b), 3);
}

void test_a_member_has_the_data_of_one_that_was_removed() {
    for (const uint32_t events : {uint32_t{EPOLLIN}, uint32_t{EPOLLIN | EPOLLET}}) {
        const Pair pair;
        const Set set;
        set.add(pair.b, some, events);
        EXPECT_EQ(set.events(), 0);
        set.remove(pair.b);
        std::array<int, 2> pipe{};
        EXPECT_EQ(pipe2(pipe.data(), O_CLOEXEC), 0);
        set.add(pipe[0], some, events);
        EXPECT_EQ(write(pipe[1], "x", 1), 1);
        EXPECT_EQ(set.events(), 1);
        EXPECT_EQ(set.events(), (events & EPOLLET) != 0 ? 0 : 1);
        close(pipe[1]);
        EXPECT_EQ(set.events(), 1);
        close(pipe[0]);
        pair.exchange();
        EXPECT_EQ(preload_test::path_of(pair.b), 3);
    }
}

// A thread that sleeps in a call on the set itself, while nothing in it is upgraded.
template <class Call> void expect_added_member_found(Call&& wait, bool has_bytes) {
    const Pair pair;
    const auto send_one = [&] { EXPECT_EQ(send(pair.a, "x", 1, 0), 1); };
    if (has_bytes) {
        send_one();
    }
    const Set set;
    const std::array<int, 2> pipe = [] {
        std::array<int, 2> ends{};
        EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
        return ends;
    }();
    set.add(pipe[0], some + 1); // a set without members would be the kernel's alone
    std::promise<long> id;
    int found = 0;
    std::thread sleeper([&] {
        id.set_value(syscall(SYS_gettid));
        found = wait(set.fd());
    });
    await_thread_asleep(id.get_future().get());
    const auto begin = fabtests::Clock::now();
    const Pair idle;
    set.add(idle.b, some + 2); // the first one that is upgraded
    set.add(pair.b, some);
    if (!has_bytes) {
        EXPECT_EQ(set.events(), 0);
        send_one();
    }
    sleeper.join();
    EXPECT_EQ(found, 1);
    EXPECT(fabtests::milliseconds_since(begin) < long_time() / 2);
    EXPECT_EQ(set.events(), 1);
    EXPECT_EQ(preload_test::receive(pair.b, 1, 0), "x");
    EXPECT_EQ(preload_test::path_of(pair.b), 3);
    close(pipe[0]);
    close(pipe[1]);
}

template <class Call> void expect_added_member_found(Call&& wait) {
    expect_added_member_found(wait, true);
    expect_added_member_found(wait, false);
}

void test_a_poll_of_a_set_hears_of_an_upgraded_member_that_is_added() {
    expect_added_member_found([](int set) {
        pollfd one{set, POLLIN, 0};
        return poll(&one, 1, long_time());
    });
}

void test_a_select_of_a_set_hears_of_an_upgraded_member_that_is_added() {
    expect_added_member_found([](int set) {
        fd_set in;
        FD_ZERO(&in);
        FD_SET(set, &in);
        timeval time{long_time() / 1000, 0};
        return select(set + 1, &in, nullptr, nullptr, &time);
    });
}

void test_a_wait_in_an_outer_set_hears_of_an_upgraded_member_that_is_added() {
    expect_added_member_found([](int set) {
        const Set outer;
        outer.add(set, some);
        return outer.events(long_time());
    });
}

// Both ends get ready to be upgraded while sets that have them come and go, and are reused: the library's lists of a
// connection's sets are not locked while it looks for a member in one of them.
void test_sets_are_closed_while_their_members_are_upgraded() {
    constexpr int pairs = 40;
    std::atomic<int> fd{-1};
    std::atomic<bool> over{false};
    std::array<std::thread, 2> others{};
    for (std::thread& other : others) {
        other = std::thread([&] {
            while (!over) {
                const Set set;
                epoll_event event{};
                event.events = EPOLLIN;
                (void)epoll_ctl(set.fd(), EPOLL_CTL_ADD, fd, &event); // fails if it was closed just now
                std::array<epoll_event, 4> found{};
                (void)epoll_wait(set.fd(), found.data(), found.size(), 0);
            }
        });
    }
    for (int i = 0; i < pairs; ++i) {
        const Connected connected;
        fd = i % 2 == 0 ? connected.a : connected.b;
        EXPECT(connected.is_upgraded_soon());
        fd = -1;
    }
    over = true;
    for (std::thread& other : others) {
        other.join();
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_two_threads_hear_of_an_event_by_level),
        FABTEST(test_all_of_many_sets_hear_of_a_member_that_is_upgraded),
        FABTEST(test_a_socket_is_no_member_because_one_before_it_had_its_number),
        FABTEST(test_the_end_of_one_member_is_not_that_of_another_one_with_the_same_data),
        FABTEST(test_a_nested_set_that_is_closed_is_no_member_any_more),
        FABTEST(test_a_nested_set_that_a_signal_handler_closes_is_no_member_any_more),
        FABTEST(test_threads_in_all_sets_around_one_hear_of_its_event),
        FABTEST(test_a_member_has_the_data_of_one_that_was_removed),
        FABTEST(test_a_poll_of_a_set_hears_of_an_upgraded_member_that_is_added),
        FABTEST(test_a_select_of_a_set_hears_of_an_upgraded_member_that_is_added),
        FABTEST(test_a_wait_in_an_outer_set_hears_of_an_upgraded_member_that_is_added),
        FABTEST(test_sets_are_closed_while_their_members_are_upgraded),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
