// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// How long the library and the program's calls wait for each other: once for each that is slow.
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "fabtests/common/test.hpp"
#include "preload/base/lowest_fd.hpp"

namespace {

using preload::lowest_fd::calls_are_slow;
using preload::lowest_fd::Opening;
using preload::lowest_fd::openings_are_slow;
using preload::lowest_fd::ProgramCall;

constexpr int long_ms = 200; // a wait that times out takes longer

bool is_foreign() { return false; }

constexpr auto nothing = [] {};

int64_t ms_since(fabtests::Clock::time_point begun) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(fabtests::Clock::now() - begun).count();
}

// Milliseconds that the beginning of one takes, while others of the other kind are under way. body() is called in it.
template <class Body> int64_t wait_of_opening(Body&& body) {
    const auto begun = fabtests::Clock::now();
    const Opening one;
    const int64_t waited = ms_since(begun);
    body();
    return waited;
}
template <class Body> int64_t wait_of_call(Body&& body) {
    const auto begun = fabtests::Clock::now();
    const ProgramCall one(is_foreign);
    const int64_t waited = ms_since(begun);
    body();
    return waited;
}
int64_t wait_of_opening() { return wait_of_opening(nothing); }
int64_t wait_of_call() { return wait_of_call(nothing); }

void test_a_slow_call_is_waited_for_once() {
    const ProgramCall slow(is_foreign);
    EXPECT(!calls_are_slow);
    EXPECT(wait_of_opening() >= long_ms);
    EXPECT(calls_are_slow); // the next one does not wait
}

void test_the_call_after_a_slow_one_is_waited_for() {
    {
        const ProgramCall slow(is_foreign);
        EXPECT(wait_of_opening() >= long_ms);
    }
    const ProgramCall next(is_foreign);
    EXPECT(wait_of_opening() >= long_ms);
}

void test_a_slow_opening_is_waited_for_once() {
    const Opening slow;
    EXPECT(!openings_are_slow);
    EXPECT(wait_of_call() >= long_ms);
    EXPECT(openings_are_slow); // the next one does not wait
}

void test_the_opening_after_a_slow_one_is_waited_for() {
    {
        const Opening slow;
        EXPECT(wait_of_call() >= long_ms);
    }
    const Opening next;
    EXPECT(wait_of_call() >= long_ms);
}

// Both kinds begin again and again, on a thread each. False: one has waited for long, on a busy machine, which
// shows nothing. Else: how often a wait was taken for one in vain, and both were under way at once.
bool begin_both_often(int& slow, int& together) {
    constexpr int rounds = 50000;
    std::atomic<bool> long_wait{false};
    std::atomic<int> slow_ones{0};
    std::atomic<int> inside{0};
    std::atomic<int> both{0};
    const auto many = [&](const auto& wait_of_one, const std::atomic<bool>& others_are_slow) {
        for (int i = 0; i < rounds && !long_wait; ++i) {
            const int64_t waited = wait_of_one([&] {
                both += inside.fetch_add(1);
                slow_ones += others_are_slow ? 1 : 0;
                inside.fetch_sub(1);
            });
            if (waited >= long_ms) {
                long_wait = true;
            }
        }
    };
    std::thread library([&] { many([](const auto& body) { return wait_of_opening(body); }, calls_are_slow); });
    std::thread program([&] { many([](const auto& body) { return wait_of_call(body); }, openings_are_slow); });
    library.join();
    program.join();
    slow = slow_ones;
    together = both;
    return !long_wait;
}

// One of the other kind may begin as a wait for the last one ends.
void test_a_wait_that_ends_in_time_is_not_slow() {
    constexpr int attempts = 10;
    int slow = 0;
    int together = 0;
    bool shown = false;
    for (int i = 0; i < attempts && !shown; ++i) {
        shown = begin_both_often(slow, together);
    }
    EXPECT(shown);
    EXPECT_EQ(slow, 0);
    EXPECT_EQ(together, 0);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_a_slow_call_is_waited_for_once),       FABTEST(test_the_call_after_a_slow_one_is_waited_for),
        FABTEST(test_a_slow_opening_is_waited_for_once),    FABTEST(test_the_opening_after_a_slow_one_is_waited_for),
        FABTEST(test_a_wait_that_ends_in_time_is_not_slow),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
