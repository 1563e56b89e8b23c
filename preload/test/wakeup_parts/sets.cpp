// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Epoll sets, each of which has an eventfd among its members while connections in it are upgraded: it is never told of,
// and does not make the set readable.
#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>
#include <set>

#include "preload/test/pair.hpp"
#include "preload/test/wakeup_parts/cases.hpp"
#include "preload/test/wakeup_parts/peer.hpp"
#include "preload/test/wakeup_parts/sleeper.hpp"
#include "preload/test/wakeup_parts/waits.hpp"

namespace wakeup_test {

namespace {

using preload_test::Pair;

void send_byte(int fd) { EXPECT_EQ(send(fd, "s", 1, MSG_NOSIGNAL), 1); }

ssize_t take_byte(int fd) {
    char byte = 0;
    return recv(fd, &byte, 1, MSG_DONTWAIT);
}

void add(int set, int fd, uint32_t events, uint64_t data) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = data;
    EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
}

// Asleep once, so that the set has its eventfd and members have told their peers of it.
void sleep_once(int set) {
    epoll_event event{};
    EXPECT_EQ(epoll_wait(set, &event, 1, 20), 0);
}

bool is_readable(int fd, int timeout = 0) {
    pollfd one{fd, POLLIN, 0};
    const int n = poll(&one, 1, timeout);
    EXPECT(n == 0 || one.revents == POLLIN);
    return n == 1;
}

bool is_selected(int fd) {
    fd_set in;
    FD_ZERO(&in);
    FD_SET(fd, &in);
    timeval none{};
    return select(fd + 1, &in, nullptr, nullptr, &none) == 1;
}

constexpr size_t ten = 10;

class Ten {
  public:
    explicit Ten(uint32_t events) : set_(epoll_create1(EPOLL_CLOEXEC)) {
        for (size_t i = 0; i < ten; ++i) {
            pairs_.push_back(std::make_unique<Pair>());
            add(set_, pairs_[i]->b, events, i);
        }
    }
    Ten(const Ten&) = delete;
    Ten& operator=(const Ten&) = delete;
    ~Ten() { close(set_); }
    void send_all() const {
        for (const auto& pair : pairs_) {
            send_byte(pair->a);
        }
    }
    [[nodiscard]] int fd(size_t i) const { return pairs_[i]->b; }
    [[nodiscard]] int set() const { return set_; }

  private:
    std::vector<std::unique_ptr<Pair>> pairs_;
    const int set_;
};

// Two threads with space for one event each; ten connections are written at once while both sleep.
void expect_all_told(uint32_t events) {
    const Ten all(events);
    constexpr int times = 100;
    std::atomic<int> taken{0};
    std::atomic<bool> over{false};
    const auto body = [&]() -> ssize_t {
        for (;;) {
            epoll_event event{};
            if (epoll_wait(all.set(), &event, 1, -1) != 1 || event.events != EPOLLIN || event.data.u64 >= ten) {
                return -1;
            }
            if (over) {
                return 0;
            }
            // Level-triggered, both threads may be told of one connection, and one finds nothing.
            taken += take_byte(all.fd(event.data.u64)) == 1 ? 1 : 0;
        }
    };
    Sleeper one(body);
    Sleeper two(body);
    for (int i = 1; i <= times; ++i) {
        one.await_asleep();
        two.await_asleep();
        all.send_all();
        EXPECT(eventually([&] { return taken == i * static_cast<int>(ten); }));
    }
    over = true;
    EXPECT(eventually([&] {
        all.send_all();
        return one.is_over() && two.is_over();
    }));
    EXPECT_EQ(one.result(), 0);
    EXPECT_EQ(two.result(), 0);
}

void test_two_threads_in_one_set_take_all_events() { expect_all_told(EPOLLIN); }
void test_two_threads_in_one_set_take_all_edges() { expect_all_told(EPOLLIN | EPOLLET); }

// The thread that was woken is busy with its event: the other one has to be woken for the rest.
void expect_rest_told(uint32_t events) {
    const Ten all(events);
    constexpr int times = 50;
    for (int i = 0; i < times; ++i) {
        std::mutex mutex;
        std::set<uint64_t> told;
        std::atomic<bool> busy{false};
        const auto body = [&]() -> ssize_t {
            for (;;) {
                epoll_event event{};
                if (epoll_wait(all.set(), &event, 1, -1) != 1 || event.data.u64 >= ten) {
                    return -1;
                }
                if (take_byte(all.fd(event.data.u64)) == 1) {
                    const std::lock_guard lock(mutex);
                    told.insert(uint64_t{event.data.u64}); // it is packed: no reference to it
                }
                if (!busy.exchange(true)) { // this one is busy until the other one has had the rest
                    return eventually([&] {
                        const std::lock_guard lock(mutex);
                        return told.size() == ten;
                    })
                               ? 0
                               : -2;
                }
                const std::lock_guard lock(mutex);
                if (told.size() == ten) {
                    return 0;
                }
            }
        };
        Sleeper one(body);
        Sleeper two(body);
        one.await_asleep();
        two.await_asleep();
        all.send_all();
        EXPECT_EQ(one.result(), 0);
        EXPECT_EQ(two.result(), 0);
    }
}

void test_another_thread_is_woken_for_events_that_have_no_place() { expect_rest_told(EPOLLIN); }
void test_another_thread_is_woken_for_edges_that_have_no_place() { expect_rest_told(EPOLLIN | EPOLLET); }

// Both sets are told of each byte, before anybody takes it.
void expect_both_sets_told(uint32_t events) {
    const Pair pair;
    constexpr int times = 200;
    std::array<int, 2> sets{epoll_create1(EPOLL_CLOEXEC), epoll_create1(EPOLL_CLOEXEC)};
    add(sets[0], pair.b, events, 100);
    add(sets[1], pair.b, events, 101);
    for (int i = 0; i < times; ++i) {
        const auto body = [&](size_t which) -> ssize_t {
            epoll_event event{};
            return epoll_wait(sets[which], &event, 1, -1) == 1 && event.events == EPOLLIN &&
                           event.data.u64 == 100 + which
                       ? 0
                       : -1;
        };
        Sleeper one([&] { return body(0); });
        Sleeper two([&] { return body(1); });
        one.await_asleep();
        two.await_asleep();
        send_byte(pair.a);
        EXPECT_EQ(one.result(), 0);
        EXPECT_EQ(two.result(), 0);
        EXPECT_EQ(take_byte(pair.b), 1);
    }
    close(sets[0]);
    close(sets[1]);
}

void test_a_connection_in_two_sets_is_told_by_both() { expect_both_sets_told(EPOLLIN); }
void test_an_edge_in_two_sets_is_told_by_both() { expect_both_sets_told(EPOLLIN | EPOLLET); }

void test_a_set_is_readable_while_something_is_in_it() {
    const Peer peer;
    const Waiter waiter(Way::level, peer.fd());
    constexpr int times = 100;
    for (int i = 0; i < times; ++i) {
        if (i % 2 == 0) {
            EXPECT(!waiter.wait(2)); // it sleeps with a time limit, and peers know its eventfd
        }
        EXPECT(!is_readable(waiter.set()));
        EXPECT(!is_selected(waiter.set()));
        Sleeper sleeper([&] { return is_readable(waiter.set(), -1) ? 1 : 0; });
        sleeper.await_asleep();
        EXPECT_EQ(peer.ask(Do::send, 1), 1);
        EXPECT_EQ(sleeper.result(), 1);
        EXPECT(is_readable(waiter.set()));
        EXPECT(is_selected(waiter.set()));
        EXPECT(waiter.wait(0));
        EXPECT_EQ(take_byte(peer.fd()), 1);
        EXPECT(!is_readable(waiter.set()));
        EXPECT(!is_readable(waiter.set(), 1)); // it does not stay
        EXPECT(!is_selected(waiter.set()));
        EXPECT(!waiter.wait(0));
    }
}

void test_a_nested_set_is_readable_while_something_is_in_it() {
    const Peer peer;
    const Waiter inner(Way::level, peer.fd());
    const int outer = epoll_create1(EPOLL_CLOEXEC);
    add(outer, inner.set(), EPOLLIN, 7);
    epoll_event event{};
    constexpr int times = 100;
    for (int i = 0; i < times; ++i) {
        if (i % 3 == 0) {
            EXPECT(!inner.wait(2));
        }
        if (i % 3 == 1) {
            EXPECT_EQ(epoll_wait(outer, &event, 1, 2), 0);
        }
        EXPECT_EQ(epoll_wait(outer, &event, 1, 0), 0);
        EXPECT(!is_readable(outer));
        Sleeper sleeper([&]() -> ssize_t {
            epoll_event told{};
            return epoll_wait(outer, &told, 1, -1) == 1 && told.events == EPOLLIN && told.data.u64 == 7 ? 1 : 0;
        });
        sleeper.await_asleep();
        EXPECT_EQ(peer.ask(Do::send, 1), 1);
        EXPECT_EQ(sleeper.result(), 1);
        EXPECT(is_readable(outer));
        EXPECT(inner.wait(0));
        EXPECT_EQ(take_byte(peer.fd()), 1);
        EXPECT(!is_readable(outer));
        EXPECT(!is_readable(outer, 1));
        EXPECT_EQ(epoll_wait(outer, &event, 1, 0), 0);
        EXPECT(!inner.wait(0));
    }
    close(outer);
}

// A byte that comes and is taken while nobody looks at the set leaves its eventfd written.
void test_a_set_whose_news_were_taken_tells_nothing() {
    const Pair pair;
    for (const uint32_t events : {uint32_t{EPOLLIN}, EPOLLIN | uint32_t{EPOLLET}}) {
        const int set = epoll_create1(EPOLL_CLOEXEC);
        add(set, pair.b, events, 5);
        epoll_event event{};
        for (int i = 0; i < 100; ++i) {
            sleep_once(set);
            send_byte(pair.a);
            EXPECT_EQ(take_byte(pair.b), 1);
            if (i % 2 == 0) {
                EXPECT(!is_readable(set));
            }
            EXPECT_EQ(epoll_wait(set, &event, 1, i % 3), 0);
        }
        close(set);
    }
}

// The eventfd stays in the kernel's set, and peers may write it late.
void test_a_set_whose_members_were_closed_tells_nothing() {
    const int set = epoll_create1(EPOLL_CLOEXEC);
    std::array<epoll_event, 8> events{};
    for (int i = 0; i < 20; ++i) {
        {
            const Pair pair;
            add(set, pair.b, EPOLLIN, 5);
            sleep_once(set);
            send_byte(pair.a);
            if (i % 2 == 0) {
                EXPECT_EQ(epoll_wait(set, events.data(), events.size(), -1), 1);
                EXPECT_EQ(uint64_t{events[0].data.u64}, 5U);
            }
            if (i % 4 == 1) {
                EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_DEL, pair.b, nullptr), 0);
            }
        }
        EXPECT_EQ(epoll_wait(set, events.data(), events.size(), 0), 0);
        EXPECT(!is_readable(set));
        EXPECT_EQ(epoll_wait(set, events.data(), events.size(), 5), 0);
        EXPECT(!is_readable(set, 1));
    }
    // It is a set as before.
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
    add(set, ends[0], EPOLLIN, 9);
    EXPECT_EQ(write(ends[1], "p", 1), 1);
    EXPECT_EQ(epoll_wait(set, events.data(), events.size(), -1), 1);
    EXPECT_EQ(uint64_t{events[0].data.u64}, 9U);
    close(ends[0]);
    close(ends[1]);
    close(set);
}

// The kernel's events and the eventfd compete for one place.
void test_a_pipe_and_a_connection_are_told_in_one_place() {
    const Pair pair;
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
    const int set = epoll_create1(EPOLL_CLOEXEC);
    add(set, pair.b, EPOLLIN, 1);
    add(set, ends[0], EPOLLIN, 2);
    for (int i = 0; i < 200; ++i) {
        Sleeper sleeper([&]() -> ssize_t {
            std::set<uint64_t> told;
            while (told.size() < 2) {
                epoll_event event{};
                if (epoll_wait(set, &event, 1, -1) != 1 || event.events != EPOLLIN || event.data.u64 - 1 > 1) {
                    return -1;
                }
                told.insert(uint64_t{event.data.u64}); // it is packed: no reference to it
                char byte = 0;
                if (event.data.u64 == 1 ? take_byte(pair.b) != 1 : read(ends[0], &byte, 1) != 1) {
                    return -2;
                }
            }
            return 0;
        });
        if (i % 2 == 0) {
            sleeper.await_asleep();
        }
        send_byte(pair.a);
        EXPECT_EQ(write(ends[1], "p", 1), 1);
        EXPECT_EQ(sleeper.result(), 0);
    }
    close(set);
    close(ends[0]);
    close(ends[1]);
}

// More members than those that a set remembers to have told of its eventfd; one byte wakes it, whichever it is for.
void test_a_set_of_many_idle_members_is_woken_by_each() {
    constexpr size_t many = 200;
    std::vector<std::unique_ptr<Pair>> pairs;
    const int set = epoll_create1(EPOLL_CLOEXEC);
    for (size_t i = 0; i < many; ++i) {
        pairs.push_back(std::make_unique<Pair>());
        add(set, pairs[i]->b, EPOLLIN, i);
    }
    for (size_t i = 0; i < 2 * many; ++i) {
        const size_t which = i * 7 % many;
        Sleeper sleeper([&]() -> ssize_t {
            epoll_event event{};
            return epoll_wait(set, &event, 1, -1) == 1 && event.data.u64 == which ? take_byte(pairs[which]->b) : -1;
        });
        sleeper.await_asleep();
        send_byte(pairs[which]->a);
        EXPECT_EQ(sleeper.result(), 1);
    }
    close(set);
}

} // namespace

std::vector<CMUnitTest> set_cases() {
    return {
        FABTEST(test_two_threads_in_one_set_take_all_events),
        FABTEST(test_two_threads_in_one_set_take_all_edges),
        FABTEST(test_another_thread_is_woken_for_events_that_have_no_place),
        FABTEST(test_another_thread_is_woken_for_edges_that_have_no_place),
        FABTEST(test_a_connection_in_two_sets_is_told_by_both),
        FABTEST(test_an_edge_in_two_sets_is_told_by_both),
        FABTEST(test_a_set_is_readable_while_something_is_in_it),
        FABTEST(test_a_nested_set_is_readable_while_something_is_in_it),
        FABTEST(test_a_set_whose_news_were_taken_tells_nothing),
        FABTEST(test_a_set_whose_members_were_closed_tells_nothing),
        FABTEST(test_a_pipe_and_a_connection_are_told_in_one_place),
        FABTEST(test_a_set_of_many_idle_members_is_woken_by_each),
    };
}

} // namespace wakeup_test
