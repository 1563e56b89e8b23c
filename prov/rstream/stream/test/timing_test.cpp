// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What a stream decides by the time, with a clock made by hand: when keepalive asks and gives up, when data that nobody
// acknowledges is given up, when writes are to be small, how long a closed stream lingers, and what a program that
// polls does only now and then.
#include "prov/rstream/stream/keepalive_timer.hpp"
#include "prov/rstream/stream/late_writes.hpp"
#include "prov/rstream/stream/linger.hpp"
#include "prov/rstream/stream/poll_interval.hpp"
#include "prov/rstream/stream/user_timeout.hpp"

#include "prov/rstream/test/wire_test.hpp"

using namespace rstream;
using Verdict = KeepaliveTimer::Verdict;

namespace {

constexpr KeepaliveSettings settings{1000, 100, 3};

KeepaliveTimer::Time at(int milliseconds) { return KeepaliveTimer::Time(std::chrono::milliseconds(milliseconds)); }

void assert_verdict(KeepaliveTimer& keepalive, int when, Verdict wanted) {
    assert_int_equal(static_cast<int>(keepalive.check(at(when))), static_cast<int>(wanted));
}

KeepaliveTimer asking() {
    KeepaliveTimer keepalive;
    keepalive.start(settings, at(0));
    keepalive.check(at(1000));
    keepalive.posted();
    return keepalive;
}

void test_off_by_default(void**) {
    KeepaliveTimer keepalive;
    assert_false(keepalive.on());
    assert_verdict(keepalive, 1000000000, Verdict::well);
}

void test_a_peer_is_asked_after_the_idle_time(void**) {
    KeepaliveTimer keepalive;
    keepalive.start(settings, at(0));
    assert_verdict(keepalive, 999, Verdict::well);
    assert_true(keepalive.due() == at(1000));
    assert_verdict(keepalive, 1000, Verdict::ask);
}

void test_what_is_heard_begins_the_idle_time_anew(void**) {
    KeepaliveTimer keepalive;
    keepalive.start(settings, at(0));
    keepalive.received(at(900));
    assert_verdict(keepalive, 1899, Verdict::well);
    assert_verdict(keepalive, 1900, Verdict::ask);
}

void test_a_peer_is_lost_after_count_intervals_without_an_answer(void**) {
    KeepaliveTimer keepalive = asking();
    assert_verdict(keepalive, 1099, Verdict::well);
    assert_verdict(keepalive, 1100, Verdict::ask);
    assert_verdict(keepalive, 1200, Verdict::ask);
    assert_verdict(keepalive, 1299, Verdict::well);
    assert_verdict(keepalive, 1300, Verdict::lost);
}

void test_an_answer_ends_the_asking(void**) {
    KeepaliveTimer keepalive = asking();
    keepalive.check(at(1100));
    keepalive.check(at(1200));
    keepalive.received(at(1250));
    assert_true(keepalive.due() == at(2250));
    assert_verdict(keepalive, 1300, Verdict::well);
    assert_verdict(keepalive, 2250, Verdict::ask);
    assert_verdict(keepalive, 2350, Verdict::ask);
}

void test_a_program_that_was_away_counts_one_interval_for_it(void**) {
    KeepaliveTimer keepalive = asking();
    assert_verdict(keepalive, 5000000, Verdict::ask);
    assert_verdict(keepalive, 5000099, Verdict::well);
    assert_verdict(keepalive, 5000100, Verdict::ask);
    assert_verdict(keepalive, 5000200, Verdict::lost);
}

void test_a_query_that_could_not_be_posted_waits_anew(void**) {
    KeepaliveTimer keepalive;
    keepalive.start({1000, 100, 1}, at(0));
    assert_verdict(keepalive, 1000, Verdict::ask);
    keepalive.moved(at(5000)); // the program was away, and the queue has space only now
    assert_verdict(keepalive, 5000, Verdict::well);
    assert_verdict(keepalive, 5100, Verdict::lost);
}

void test_what_the_core_moves_is_no_answer(void**) {
    KeepaliveTimer keepalive = asking();
    keepalive.check(at(1100));
    keepalive.check(at(1200));
    keepalive.moved(at(1250)); // an iWARP adapter completes what it has only buffered
    assert_verdict(keepalive, 1300, Verdict::lost);
}

void test_stopping_and_starting(void**) {
    KeepaliveTimer keepalive = asking();
    keepalive.stop();
    assert_verdict(keepalive, 100000, Verdict::well);
    keepalive.start(settings, at(100000));
    assert_verdict(keepalive, 100999, Verdict::well);
    assert_verdict(keepalive, 101000, Verdict::ask);
}

// ---- UserTimeout

void assert_timeout(UserTimeout& timeout, int when, bool outstanding, UserTimeout::Verdict wanted) {
    assert_int_equal(static_cast<int>(timeout.check(at(when), outstanding)), static_cast<int>(wanted));
}

UserTimeout timeout_of_a_second() {
    UserTimeout timeout;
    timeout.start(1000, at(0));
    return timeout;
}

void test_unacknowledged_data_is_asked_after_and_given_up_after_the_time(void**) {
    UserTimeout timeout = timeout_of_a_second();
    assert_timeout(timeout, 249, true, UserTimeout::Verdict::well);
    for (int i = 1; i <= 4; ++i) {
        assert_timeout(timeout, 250 * i, true, UserTimeout::Verdict::ask);
    }
    assert_timeout(timeout, 1249, true, UserTimeout::Verdict::well);
    assert_timeout(timeout, 1250, true, UserTimeout::Verdict::lost);
}

void test_an_end_with_nothing_under_way_is_left_alone(void**) {
    UserTimeout timeout = timeout_of_a_second();
    for (int i = 1; i <= 100; ++i) {
        assert_timeout(timeout, 250 * i, false, UserTimeout::Verdict::well);
    }
    assert_timeout(timeout, 25250, true, UserTimeout::Verdict::ask);
}

void test_what_is_heard_begins_the_user_timeout_anew(void**) {
    UserTimeout timeout = timeout_of_a_second();
    for (int i = 1; i <= 4; ++i) {
        assert_timeout(timeout, 250 * i, true, UserTimeout::Verdict::ask);
    }
    timeout.received();
    assert_timeout(timeout, 1250, true, UserTimeout::Verdict::well); // no probe is necessary
    for (int i = 6; i <= 8; ++i) {
        assert_timeout(timeout, 250 * i, true, UserTimeout::Verdict::ask);
    }
    assert_timeout(timeout, 2250, true, UserTimeout::Verdict::lost);
}

void test_what_an_adapter_takes_begins_the_user_timeout_anew_and_is_asked_after(void**) {
    UserTimeout timeout = timeout_of_a_second();
    for (int i = 1; i <= 20; ++i) {
        timeout.moved();
        assert_timeout(timeout, 250 * i, true, UserTimeout::Verdict::ask);
    }
    for (int i = 21; i <= 23; ++i) {
        assert_timeout(timeout, 250 * i, true, UserTimeout::Verdict::ask);
    }
    assert_timeout(timeout, 6000, true, UserTimeout::Verdict::lost);
}

void test_checks_that_had_paused_begin_with_a_whole_period(void**) {
    UserTimeout timeout = timeout_of_a_second();
    assert_timeout(timeout, 250, false, UserTimeout::Verdict::well);
    timeout.resume(at(10000));
    assert_timeout(timeout, 10249, true, UserTimeout::Verdict::well);
    for (int i = 1; i <= 4; ++i) {
        assert_timeout(timeout, 10000 + 250 * i, true, UserTimeout::Verdict::ask);
    }
    assert_timeout(timeout, 11250, true, UserTimeout::Verdict::lost);
}

void test_a_program_that_was_away_finds_no_timeout(void**) {
    UserTimeout timeout = timeout_of_a_second();
    assert_timeout(timeout, 1000000, true, UserTimeout::Verdict::ask);
    assert_timeout(timeout, 1000249, true, UserTimeout::Verdict::well);
}

void test_a_user_timeout_of_none_never_ends_anything(void**) {
    UserTimeout timeout;
    timeout.start(0, at(0));
    assert_false(timeout.on());
    assert_timeout(timeout, 1000000, true, UserTimeout::Verdict::well);
}

// ---- LateWrites

constexpr std::chrono::milliseconds prompt{1};

void test_writes_are_large_until_one_is_late(void**) {
    LateWrites writes;
    writes.done(1000000, prompt);
    assert_false(writes.small());
    writes.done(1000, LateWrites::late);
    assert_true(writes.small());
}

void test_writes_are_large_again_once_enough_went_well(void**) {
    LateWrites writes;
    writes.done(1000, LateWrites::late);
    writes.done(LateWrites::first_trial - 1, prompt);
    assert_true(writes.small());
    writes.done(1000, LateWrites::late); // counts anew
    writes.done(LateWrites::first_trial - 1, prompt);
    assert_true(writes.small());
    writes.done(1, prompt);
    assert_false(writes.small());
}

void test_each_relapse_takes_twice_as_much(void**) {
    LateWrites writes;
    for (size_t trial = LateWrites::first_trial; trial <= 4 * LateWrites::first_trial; trial *= 2) {
        writes.done(1000, LateWrites::late);
        writes.done(trial - 1, prompt);
        assert_true(writes.small());
        writes.done(1, prompt);
        assert_false(writes.small());
    }
}

// ---- Linger

void test_a_close_waits_as_long_as_the_program_said(void**) {
    Linger linger;
    linger.start(at(1000), std::chrono::milliseconds(500));
    assert_int_equal(linger.wait_left(at(1000)), 500);
    assert_int_equal(linger.wait_left(at(1499)), 1);
    assert_int_equal(linger.wait_left(at(1499) + std::chrono::microseconds(1)), 1);
    assert_int_equal(linger.wait_left(at(1500)), 0);
    assert_true(linger.wait_left(at(2000)) < 0);
}

void test_a_stream_lingers_in_the_background(void**) {
    Linger linger;
    linger.start(at(1000), std::chrono::milliseconds(500));
    assert_false(linger.given_up(at(60999)));
    assert_true(linger.given_up(at(61000)));
}

void test_a_stream_is_not_given_up_before_the_program_has_waited(void**) {
    Linger linger;
    linger.start(at(0), std::chrono::milliseconds(100000));
    assert_false(linger.given_up(at(99999)));
    assert_true(linger.given_up(at(100000)));
}

void test_a_stream_that_was_not_closed_does_not_linger(void**) { assert_true(Linger().given_up(at(0))); }

// ---- PollInterval

// In how many of so many polls at that time it was due.
int due_of(PollInterval& interval, uint32_t polls, int when) {
    int due = 0;
    for (uint32_t i = 0; i < polls; ++i) {
        due += interval.due([&] { return at(when); }) ? 1 : 0;
    }
    return due;
}

void test_the_clock_is_read_in_one_of_some_polls(void**) {
    PollInterval interval;
    int reads = 0;
    for (uint32_t i = 0; i < 3 * PollInterval::polls_a_clock; ++i) {
        interval.due([&] {
            ++reads;
            return at(0);
        });
    }
    assert_int_equal(reads, 3);
}

void test_a_poll_is_due_once_in_an_interval(void**) {
    PollInterval interval;
    assert_int_equal(due_of(interval, PollInterval::polls_a_clock, 100), 1);
    assert_int_equal(due_of(interval, 3 * PollInterval::polls_a_clock, 109), 0);
    assert_int_equal(due_of(interval, 3 * PollInterval::polls_a_clock, 110), 1);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_off_by_default),
        cmocka_unit_test(test_a_peer_is_asked_after_the_idle_time),
        cmocka_unit_test(test_what_is_heard_begins_the_idle_time_anew),
        cmocka_unit_test(test_a_peer_is_lost_after_count_intervals_without_an_answer),
        cmocka_unit_test(test_an_answer_ends_the_asking),
        cmocka_unit_test(test_a_program_that_was_away_counts_one_interval_for_it),
        cmocka_unit_test(test_a_query_that_could_not_be_posted_waits_anew),
        cmocka_unit_test(test_what_the_core_moves_is_no_answer),
        cmocka_unit_test(test_stopping_and_starting),
        cmocka_unit_test(test_unacknowledged_data_is_asked_after_and_given_up_after_the_time),
        cmocka_unit_test(test_an_end_with_nothing_under_way_is_left_alone),
        cmocka_unit_test(test_what_is_heard_begins_the_user_timeout_anew),
        cmocka_unit_test(test_what_an_adapter_takes_begins_the_user_timeout_anew_and_is_asked_after),
        cmocka_unit_test(test_checks_that_had_paused_begin_with_a_whole_period),
        cmocka_unit_test(test_a_program_that_was_away_finds_no_timeout),
        cmocka_unit_test(test_a_user_timeout_of_none_never_ends_anything),
        cmocka_unit_test(test_writes_are_large_until_one_is_late),
        cmocka_unit_test(test_writes_are_large_again_once_enough_went_well),
        cmocka_unit_test(test_each_relapse_takes_twice_as_much),
        cmocka_unit_test(test_a_close_waits_as_long_as_the_program_said),
        cmocka_unit_test(test_a_stream_lingers_in_the_background),
        cmocka_unit_test(test_a_stream_is_not_given_up_before_the_program_has_waited),
        cmocka_unit_test(test_a_stream_that_was_not_closed_does_not_linger),
        cmocka_unit_test(test_the_clock_is_read_in_one_of_some_polls),
        cmocka_unit_test(test_a_poll_is_due_once_in_an_interval),
    };
    return RUN_TAP(tests);
}
