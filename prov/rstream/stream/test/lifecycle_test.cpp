// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The states of a connection: the whole table of moves, which failure counts, and what is reported once.
#include "prov/rstream/stream/lifecycle.hpp"

#include <cerrno>

#include "prov/rstream/test/wire_test.hpp"

using namespace rstream;

namespace {

constexpr State all_states[] = {State::open,    State::preparing, State::connecting, State::connected,
                                State::refused, State::abandoned, State::lost};

void assert_state(const Lifecycle& lifecycle, State wanted) {
    assert_int_equal(static_cast<int>(lifecycle.state()), static_cast<int>(wanted));
}

// Brings a new one to a state by moves that there are.
void bring(Lifecycle& lifecycle, State to) {
    assert_true(to == State::open || lifecycle.move(State::preparing));
    switch (to) {
    case State::open:
    case State::preparing:
        break;
    case State::connecting:
    case State::refused:
        assert_true(lifecycle.move(to));
        break;
    case State::connected:
    case State::abandoned:
        assert_true(lifecycle.move(State::connecting));
        assert_true(lifecycle.move(to));
        break;
    case State::lost:
        assert_true(lifecycle.move(State::connecting));
        assert_true(lifecycle.move(State::connected));
        assert_true(lifecycle.move(to));
        break;
    }
    assert_state(lifecycle, to);
}

void test_the_moves_that_there_are(void**) {
    // Row: from. Column: to, in the order of the enum.
    const char* const wanted[] = {
        ".x.....", // open
        "x.x.x..", // preparing
        "x..xxx.", // connecting
        "......x", // connected
        ".....x.", // refused
        ".......", // abandoned
        ".......", // lost
    };
    for (size_t from = 0; from < std::size(all_states); ++from) {
        for (size_t to = 0; to < std::size(all_states); ++to) {
            Lifecycle lifecycle;
            bring(lifecycle, all_states[from]);
            const bool allowed = wanted[from][to] == 'x';
            assert_int_equal(may_move(all_states[from], all_states[to]), allowed);
            assert_int_equal(lifecycle.move(all_states[to]), allowed);
            assert_state(lifecycle, all_states[allowed ? to : from]);
        }
    }
}

void test_what_a_state_is_counted_among(void**) {
    struct Row {
        State state;
        bool failed;
        bool connected;
        bool awaits;
    };
    const Row rows[] = {
        {State::open, false, false, false},      {State::preparing, false, false, false},
        {State::connecting, false, false, true}, {State::connected, false, true, false},
        {State::refused, true, false, false},    {State::abandoned, true, false, true},
        {State::lost, true, true, false},
    };
    for (const Row& row : rows) {
        assert_int_equal(has_failed(row.state), row.failed);
        assert_int_equal(has_connected(row.state), row.connected);
        assert_int_equal(awaits_answer(row.state), row.awaits);
    }
}

void test_the_first_failure_counts(void**) {
    Lifecycle lifecycle;
    bring(lifecycle, State::connected);
    assert_int_equal(lifecycle.error(), 0);
    assert_true(lifecycle.fail(ECONNRESET));
    assert_state(lifecycle, State::lost);
    assert_false(lifecycle.fail(ETIMEDOUT));
    assert_int_equal(lifecycle.error(), ECONNRESET);
}

void test_a_failure_before_there_was_a_connection_is_a_refusal(void**) {
    Lifecycle lifecycle;
    bring(lifecycle, State::connecting);
    assert_true(lifecycle.fail(ECONNREFUSED));
    assert_state(lifecycle, State::refused);
    assert_false(lifecycle.abandon(ECONNABORTED));
    assert_int_equal(lifecycle.error(), ECONNREFUSED);
}

void test_a_connect_that_could_not_begin_can_be_tried_again(void**) {
    Lifecycle lifecycle;
    bring(lifecycle, State::connecting);
    assert_true(lifecycle.move(State::open));
    bring(lifecycle, State::connected);
    assert_true(lifecycle.connected());
    assert_false(lifecycle.move(State::preparing));
}

void test_only_a_request_to_connect_can_be_abandoned(void**) {
    Lifecycle idle;
    assert_false(idle.abandon(ECONNABORTED));
    assert_int_equal(idle.error(), 0);
    Lifecycle connected;
    bring(connected, State::connected);
    assert_false(connected.abandon(ECONNABORTED));
    Lifecycle connecting;
    bring(connecting, State::connecting);
    assert_true(connecting.abandon(ECONNABORTED));
    assert_state(connecting, State::abandoned);
    assert_false(connecting.fail(ETIMEDOUT)); // a late answer changes nothing
    assert_int_equal(connecting.error(), ECONNABORTED);
}

void test_an_error_and_the_end_are_reported_once(void**) {
    Lifecycle lifecycle;
    assert_true(lifecycle.claim_error_report());
    assert_false(lifecycle.claim_error_report());
    assert_true(lifecycle.claim_end_event());
    assert_false(lifecycle.claim_end_event());
    Lifecycle other;
    other.on_error_reported();
    assert_false(other.claim_error_report());
    other.drop_end_event();
    assert_false(other.claim_end_event());
}

void test_receiving_stays_shut(void**) {
    Lifecycle lifecycle;
    assert_false(lifecycle.receive_shut());
    lifecycle.shut_receive();
    assert_true(lifecycle.receive_shut());
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_the_moves_that_there_are),
        cmocka_unit_test(test_what_a_state_is_counted_among),
        cmocka_unit_test(test_the_first_failure_counts),
        cmocka_unit_test(test_a_failure_before_there_was_a_connection_is_a_refusal),
        cmocka_unit_test(test_a_connect_that_could_not_begin_can_be_tried_again),
        cmocka_unit_test(test_only_a_request_to_connect_can_be_abandoned),
        cmocka_unit_test(test_an_error_and_the_end_are_reported_once),
        cmocka_unit_test(test_receiving_stays_shut),
    };
    return RUN_TAP(tests);
}
