// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Threads that use the same sets: however many put them into each other, no set ends up within itself; and each hears
// of what others have left.
#include <array>
#include <atomic>
#include <future>
#include <span>
#include <vector>

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "rsockets/test/asleep.hpp"
#include "rsockets/test/sockets.hpp"

namespace {

using namespace fabtests;
using namespace rsocket_test;

#if defined(__SANITIZE_THREAD__)
constexpr int rounds = 500;
#else
constexpr int rounds = 5000;
#endif

int put(int inner, int outer) {
    epoll_event event{};
    event.events = EPOLLIN;
    return repoll_ctl(outer, EPOLL_CTL_ADD, inner, &event);
}

void test_two_threads_cannot_make_a_cycle() {
    std::atomic<int> first{-1};
    std::atomic<int> second{-1};
    std::atomic<int> round{0};
    std::atomic<int> done{0};
    std::atomic<int> result{0};
    Threads threads;
    threads.start([&] {
        for (int i = 1; i <= rounds; ++i) {
            while (round.load() < i) {
            }
            result.store(put(second.load(), first.load()));
            done.store(i);
        }
    });
    int cycles = 0;
    int neither = 0;
    for (int i = 1; i <= rounds; ++i) {
        const Number one(repoll_create(0));
        const Number two(repoll_create(0));
        first.store(one);
        second.store(two);
        round.store(i);
        const int ret = put(one, two);
        while (done.load() < i) {
        }
        cycles += ret == 0 && result.load() == 0 ? 1 : 0;
        neither += ret != 0 && result.load() != 0 ? 1 : 0;
    }
    threads.join();
    EXPECT_EQ(cycles, 0);
    EXPECT_EQ(neither, 0);
}

// Ways to wait for an event of a set; each gives the number of events.
using Wait = int (*)(int set, int time);
int wait_in(int set, int time) {
    epoll_event event{};
    return repoll_wait(set, &event, 1, time);
}
int poll_of(int set, int time) {
    pollfd one{set, POLLIN, 0};
    return rpoll(&one, 1, time);
}

// A thread waits for a set.
struct Waiter {
    Wait wait = nullptr;
    int set = -1;

    // A thread that was not woken finds the event when its time is over.
    void expect_event() const {
        const auto time = patience(20000);
        const auto begin = Clock::now();
        EXPECT_EQ(wait(set, time), 1);
        EXPECT(milliseconds_since(begin) < time / 2);
    }
};

// One thread sleeps when something happens, and this one begins to wait afterwards.
template <class Happens> void expect_both_report(const Waiter& one, const Waiter& other, const Happens& happens) {
    Threads threads;
    (void)start_asleep(threads, [&] { one.expect_event(); });
    happens();
    other.expect_event();
    threads.join();
}

template <class Happens> void expect_both_report(int set, const Happens& happens) {
    expect_both_report({wait_in, set}, {wait_in, set}, happens);
}

// One of two threads takes what its array has space for; what tells of the rest must not be used up with that.
void test_what_one_thread_has_no_room_for_wakes_another_one() {
    const Ends one = connected();
    const Ends other = connected();
    for (int i = 0; i < 200; ++i) {
        const Number set(repoll_create(0));
        expect_both_report(set, [&] {
            for (const int fd : {static_cast<int>(one.client), static_cast<int>(other.client)}) {
                epoll_event event{};
                event.events = EPOLLOUT | EPOLLONESHOT;
                EXPECT_EQ(repoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
            }
        });
    }
}

// Neither of two threads takes what both are to hear of, by level: a listener that has something to accept.
void test_what_one_thread_has_heard_of_wakes_another_one() {
    const Number from = listener();
    for (int i = 0; i < 50; ++i) {
        const Number set(repoll_create(0));
        EXPECT_EQ(put(from, set), 0);
        Number client;
        expect_both_report(set, [&] { client = connected_to(port_of(from)); });
        EXPECT(Number(raccept(from, nullptr, nullptr)) >= 0);
    }
}

// Two ways to wait, for a set alone; or for an outer set, and for the inner one that has the member.
struct Pair {
    Wait first;
    Wait second;
    bool nested;
};
constexpr Pair of_one_set[] = {{wait_in, wait_in, false}, {wait_in, poll_of, false}, {poll_of, wait_in, false}};
constexpr Pair of_nested_sets[] = {{wait_in, wait_in, true}, {wait_in, poll_of, true}, {poll_of, wait_in, true}};

// swapped: the second one sleeps when it happens, else the first one.
template <class Happens> void expect_pair_reports(const Pair& pair, bool swapped, int member, const Happens& happens) {
    const Number outer(repoll_create(0));
    const Number inner(repoll_create(0));
    EXPECT_EQ(pair.nested ? put(inner, outer) : 0, 0);
    EXPECT_EQ(member >= 0 ? put(member, inner) : 0, 0);
    const Waiter first{pair.first, pair.nested ? outer : inner};
    const Waiter second{pair.second, inner};
    expect_both_report(swapped ? second : first, swapped ? first : second, [&] { happens(inner); });
}

// The event stays: nobody accepts.
void expect_all_report_a_listener(std::span<const Pair> pairs) {
    const Number from = listener();
    const Number client = connected_to(port_of(from));
    for (const Pair& pair : pairs) {
        for (int i = 0; i < 40; ++i) {
            expect_pair_reports(pair, i % 2 != 0, -1, [&](int inner) { EXPECT_EQ(put(from, inner), 0); });
        }
    }
}

void test_a_wait_in_a_set_and_a_poll_of_it_both_report_an_event() { expect_all_report_a_listener(of_one_set); }

void test_waits_in_a_set_and_in_its_outer_set_both_report_an_event() { expect_all_report_a_listener(of_nested_sets); }

void expect_all_report_a_shutdown(std::span<const Pair> pairs) {
    const Number from = listener();
    for (const Pair& pair : pairs) {
        for (int i = 0; i < 20; ++i) {
            const Number fd = connected_to(port_of(from));
            const Number peer(raccept(from, nullptr, nullptr));
            expect_pair_reports(pair, i % 2 != 0, fd, [&](int) { (void)rshutdown(fd, SHUT_RD); });
        }
    }
}

void test_waiting_threads_all_report_that_another_one_shut_down_reading() {
    expect_all_report_a_shutdown(of_one_set);
    expect_all_report_a_shutdown(of_nested_sets);
}

// Threads that sleep in different sets around the same one: none uses up what wakes the others.
template <class Happens> void expect_all_wake(std::span<const Waiter> waiters, const Happens& happens) {
    Threads threads;
    std::vector<std::promise<long>> ids(waiters.size());
    for (size_t i = 0; i < waiters.size(); ++i) {
        threads.start([&, i] {
            ids[i].set_value(syscall(SYS_gettid));
            waiters[i].expect_event();
        });
    }
    for (auto& id : ids) {
        await_thread_asleep(id.get_future().get());
    }
    happens();
    threads.join();
}

void test_waits_in_all_sets_around_one_report_its_event() {
    const Number from = listener();
    for (const Wait wait : {wait_in, poll_of}) {
        for (int i = 0; i < 20; ++i) {
            const Number inner(repoll_create(0));
            const Number one(repoll_create(0));
            const Number other(repoll_create(0));
            const Number around_other(repoll_create(0));
            EXPECT_EQ(put(inner, one), 0);
            EXPECT_EQ(put(inner, other), 0);
            EXPECT_EQ(put(other, around_other), 0);
            EXPECT_EQ(put(from, inner), 0);
            const Waiter waiters[] = {{wait, one}, {wait_in, other}, {wait, around_other}, {wait_in, inner}};
            Number client;
            expect_all_wake(std::span(waiters).first(i % 2 == 0 ? 2 : 4),
                            [&] { client = connected_to(port_of(from)); });
            EXPECT(Number(raccept(from, nullptr, nullptr)) >= 0);
        }
    }
}

// Answers each byte, in a loop of its own: it asks for events until there are none, and then sleeps on the set's
// descriptor, which must be readable when there is something to ask for.
void answer_bytes(int set, std::span<const Ends> connections, int count) {
    for (int answered = 0; answered < count;) {
        std::array<epoll_event, 4> events{};
        const int found = repoll_wait(set, events.data(), events.size(), 0);
        EXPECT(found >= 0);
        for (int i = 0; i < found; ++i) {
            const int fd = connections[events[static_cast<size_t>(i)].data.u64].server;
            char byte = 0;
            if (rrecv(fd, &byte, 1, MSG_DONTWAIT) == 1) {
                EXPECT_EQ(rsend(fd, &byte, 1, 0), 1);
                ++answered;
            }
        }
        if (found == 0) {
            pollfd one{set, POLLIN, 0};
            EXPECT_EQ(poll(&one, 1, patience(20000)), 1);
        }
    }
}

void test_an_event_loop_may_sleep_on_the_descriptor_of_a_set() {
    constexpr size_t count = 4;
    std::vector<Ends> connections(count);
    const Number set(repoll_create(0));
    for (size_t i = 0; i < count; ++i) {
        connections[i] = connected();
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.u64 = i;
        EXPECT_EQ(repoll_ctl(set, EPOLL_CTL_ADD, connections[i].server, &event), 0);
    }
    Threads threads;
    threads.start([&] { answer_bytes(set, connections, rounds); });
    for (int i = 0; i < rounds; ++i) {
        const int fd = connections[static_cast<size_t>(i) % count].client;
        char byte = 'x';
        EXPECT_EQ(rsend(fd, &byte, 1, 0), 1);
        EXPECT_EQ(rrecv(fd, &byte, 1, MSG_WAITALL), 1);
    }
    threads.join();
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_two_threads_cannot_make_a_cycle),
        FABTEST(test_what_one_thread_has_no_room_for_wakes_another_one),
        FABTEST(test_what_one_thread_has_heard_of_wakes_another_one),
        FABTEST(test_a_wait_in_a_set_and_a_poll_of_it_both_report_an_event),
        FABTEST(test_waits_in_a_set_and_in_its_outer_set_both_report_an_event),
        FABTEST(test_waiting_threads_all_report_that_another_one_shut_down_reading),
        FABTEST(test_waits_in_all_sets_around_one_report_its_event),
        FABTEST(test_an_event_loop_may_sleep_on_the_descriptor_of_a_set),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
