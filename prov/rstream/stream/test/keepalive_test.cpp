// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What a connection decides by the time, with a clock made by hand: when keepalive asks and gives up, when data that
// nobody acknowledges is given up, and when writes are to be small.
#include "prov/rstream/stream/keepalive.hpp"
#include "prov/rstream/stream/late_writes.hpp"
#include "prov/rstream/stream/user_timeout.hpp"

#include "prov/rstream/test/wire_test.hpp"

using namespace rstream;
using Verdict = Keepalive::Verdict;

namespace {

constexpr KeepaliveSettings settings{1000, 100, 3};

Keepalive::Time at(int milliseconds) { return Keepalive::Time(std::chrono::milliseconds(milliseconds)); }

void assert_verdict(Keepalive& keepalive, int when, Verdict wanted) {
    assert_int_equal(static_cast<int>(keepalive.look(at(when))), static_cast<int>(wanted));
}

Keepalive asking() {
    Keepalive keepalive;
    keepalive.start(settings, at(0));
    keepalive.look(at(1000));
    keepalive.posted();
    return keepalive;
}

void test_off_by_default(void**) {
    Keepalive keepalive;
    assert_false(keepalive.on());
    assert_verdict(keepalive, 1000000000, Verdict::well);
}

void test_a_peer_is_asked_after_the_idle_time(void**) {
    Keepalive keepalive;
    keepalive.start(settings, at(0));
    assert_verdict(keepalive, 999, Verdict::well);
    assert_true(keepalive.due() == at(1000));
    assert_verdict(keepalive, 1000, Verdict::ask);
}

void test_what_is_heard_begins_the_idle_time_anew(void**) {
    Keepalive keepalive;
    keepalive.start(settings, at(0));
    keepalive.heard(at(900));
    assert_verdict(keepalive, 1899, Verdict::well);
    assert_verdict(keepalive, 1900, Verdict::ask);
}

void test_a_peer_is_lost_after_count_intervals_without_an_answer(void**) {
    Keepalive keepalive = asking();
    assert_verdict(keepalive, 1099, Verdict::well);
    assert_verdict(keepalive, 1100, Verdict::ask);
    assert_verdict(keepalive, 1200, Verdict::ask);
    assert_verdict(keepalive, 1299, Verdict::well);
    assert_verdict(keepalive, 1300, Verdict::lost);
}

void test_an_answer_ends_the_asking(void**) {
    Keepalive keepalive = asking();
    keepalive.look(at(1100));
    keepalive.look(at(1200));
    keepalive.heard(at(1250));
    assert_true(keepalive.due() == at(2250));
    assert_verdict(keepalive, 1300, Verdict::well);
    assert_verdict(keepalive, 2250, Verdict::ask);
    assert_verdict(keepalive, 2350, Verdict::ask);
}

void test_a_program_that_was_away_counts_one_interval_for_it(void**) {
    Keepalive keepalive = asking();
    assert_verdict(keepalive, 5000000, Verdict::ask);
    assert_verdict(keepalive, 5000099, Verdict::well);
    assert_verdict(keepalive, 5000100, Verdict::ask);
    assert_verdict(keepalive, 5000200, Verdict::lost);
}

void test_a_question_that_could_not_be_posted_waits_anew_once_the_core_moves(void**) {
    Keepalive keepalive;
    keepalive.start({1000, 100, 1}, at(0));
    assert_verdict(keepalive, 1000, Verdict::ask);
    keepalive.moved(at(5000)); // the program was away, and the queue has room only now
    assert_verdict(keepalive, 5000, Verdict::well);
    assert_verdict(keepalive, 5100, Verdict::lost);
}

void test_what_the_core_moves_is_no_answer(void**) {
    Keepalive keepalive = asking();
    keepalive.look(at(1100));
    keepalive.look(at(1200));
    keepalive.moved(at(1250)); // an iWARP adapter completes what it has only buffered
    assert_verdict(keepalive, 1300, Verdict::lost);
}

void test_stopping_and_starting(void**) {
    Keepalive keepalive = asking();
    keepalive.stop();
    assert_verdict(keepalive, 100000, Verdict::well);
    keepalive.start(settings, at(100000));
    assert_verdict(keepalive, 100999, Verdict::well);
    assert_verdict(keepalive, 101000, Verdict::ask);
}

// ---- UserTimeout

void assert_timeout(UserTimeout& timeout, int when, bool outstanding, UserTimeout::Verdict wanted) {
    assert_int_equal(static_cast<int>(timeout.look(at(when), outstanding)), static_cast<int>(wanted));
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
    timeout.heard();
    for (int i = 5; i <= 8; ++i) {
        assert_timeout(timeout, 250 * i, true, UserTimeout::Verdict::ask);
    }
    assert_timeout(timeout, 2250, true, UserTimeout::Verdict::lost);
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

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_off_by_default),
        cmocka_unit_test(test_a_peer_is_asked_after_the_idle_time),
        cmocka_unit_test(test_what_is_heard_begins_the_idle_time_anew),
        cmocka_unit_test(test_a_peer_is_lost_after_count_intervals_without_an_answer),
        cmocka_unit_test(test_an_answer_ends_the_asking),
        cmocka_unit_test(test_a_program_that_was_away_counts_one_interval_for_it),
        cmocka_unit_test(test_a_question_that_could_not_be_posted_waits_anew_once_the_core_moves),
        cmocka_unit_test(test_what_the_core_moves_is_no_answer),
        cmocka_unit_test(test_stopping_and_starting),
        cmocka_unit_test(test_unacknowledged_data_is_asked_after_and_given_up_after_the_time),
        cmocka_unit_test(test_an_end_with_nothing_under_way_is_left_alone),
        cmocka_unit_test(test_what_is_heard_begins_the_user_timeout_anew),
        cmocka_unit_test(test_a_program_that_was_away_finds_no_timeout),
        cmocka_unit_test(test_a_user_timeout_of_none_never_ends_anything),
        cmocka_unit_test(test_writes_are_large_until_one_is_late),
        cmocka_unit_test(test_writes_are_large_again_once_enough_went_well),
        cmocka_unit_test(test_each_relapse_takes_twice_as_much),
    };
    return RUN_TAP(tests);
}
