// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// How long the library and the program's calls wait for each other: once for each that is slow.
#include <chrono>
#include <memory>

#include "fabtests/common/test.hpp"
#include "preload/base/lowest_fd.hpp"

namespace {

using preload::lowest_fd::calls_are_slow;
using preload::lowest_fd::Opening;
using preload::lowest_fd::openings_are_slow;
using preload::lowest_fd::ProgramCall;

constexpr int long_ms = 200; // a wait that times out takes longer

bool is_foreign() { return false; }

// Milliseconds that the beginning of one takes, while others of the other kind are under way.
int64_t wait_of_opening() {
    const auto begun = fabtests::Clock::now();
    const Opening one;
    return std::chrono::duration_cast<std::chrono::milliseconds>(fabtests::Clock::now() - begun).count();
}
int64_t wait_of_call() {
    const auto begun = fabtests::Clock::now();
    const ProgramCall one(is_foreign);
    return std::chrono::duration_cast<std::chrono::milliseconds>(fabtests::Clock::now() - begun).count();
}

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

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_a_slow_call_is_waited_for_once),
        FABTEST(test_the_call_after_a_slow_one_is_waited_for),
        FABTEST(test_a_slow_opening_is_waited_for_once),
        FABTEST(test_the_opening_after_a_slow_one_is_waited_for),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
