// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The accounting below a link, each part alone: rings, the receiving half of a direction, and the credits of control
// messages. The sending half has a file of its own.
#include "prov/rstream/test/wire_test.hpp"

#include <limits>

#include "prov/rstream/wire/limits.hpp"

using namespace rstream::wire;

namespace {

// ---- ring

void test_ring_extent_ends_at_the_wrap(void**) {
    const Ring ring(5000);
    assert_extent(ring.extent(0, 100), 0, 100);
    assert_extent(ring.extent(0, 5000), 0, 5000);
    assert_extent(ring.extent(0, 5001), 0, 5000);
    assert_extent(ring.extent(4999, 2), 4999, 1);
    assert_extent(ring.extent(5000, 2), 0, 2);
    assert_extent(ring.extent(12345, 0), 2345, 0);
}

void test_ring_takes_positions_and_lengths_of_64_bits(void**) {
    const Ring ring(5000);
    constexpr uint64_t most = std::numeric_limits<uint64_t>::max();
    assert_extent(ring.extent(most, most), most % 5000, 5000 - most % 5000);
    assert_extent(ring.extent(5000ULL << 40, 7), 0, 7);
}

// ---- receiving half

void test_receive_counts_and_peeks(void**) {
    RecvFlow recv(5000, 4);
    assert_int_equal(recv.readable(), 0);
    assert_extent(recv.peek(100), 0, 0);
    assert_string_equal(rule(recv.on_data(4000, false)), fine);
    assert_int_equal(recv.readable(), 4000);
    assert_extent(recv.peek(100), 0, 100);
    assert_extent(recv.peek(9000), 0, 4000);
    assert_extent(recv.peek(9000, 1000), 1000, 3000);
    assert_extent(recv.peek(9000, 4000), 4000, 0);
    recv.consume(4000);
    assert_int_equal(recv.readable(), 0);
}

void test_peek_splits_at_the_wrap(void**) {
    RecvFlow recv(5000, 384);
    recv.on_data(4000, false);
    recv.consume(4000);
    RecvFlow::Totals before;
    recv.grant(before);
    assert_string_equal(rule(recv.on_data(3000, false)), fine);
    assert_extent(recv.peek(3000), 4000, 1000);
    assert_extent(recv.peek(3000, 500), 4500, 500);
    assert_extent(recv.peek(3000, 1000), 0, 2000);
}

void test_peek_beyond_what_is_readable_is_empty(void**) {
    RecvFlow recv(5000, 4);
    recv.on_data(100, false);
    assert_int_equal(recv.peek(50, 101).length, 0);
}

void test_data_that_just_fits_is_taken(void**) {
    RecvFlow recv(4096, 384);
    assert_string_equal(rule(recv.on_data(4095, false)), fine);
    assert_string_equal(rule(recv.on_data(2, false)), "data beyond the receive ring");
    assert_string_equal(rule(recv.on_data(1, false)), fine);
    assert_string_equal(rule(recv.on_data(1, false)), "data beyond the receive ring");
    assert_int_equal(recv.readable(), 4096);
}

void test_room_that_the_peer_was_not_told_of_is_not_its_to_use(void**) {
    RecvFlow recv(4096, 384);
    recv.on_data(4096, false);
    recv.consume(4096);
    assert_string_equal(rule(recv.on_data(1, false)), "data beyond the receive ring");
    RecvFlow::Totals before;
    recv.grant(before);
    assert_string_equal(rule(recv.on_data(4096, false)), fine);
}

void test_more_messages_than_credits_are_refused(void**) {
    RecvFlow recv(4096, 4);
    for (int i = 0; i < 4; ++i) {
        assert_string_equal(rule(recv.on_data(1, false)), fine);
    }
    assert_string_equal(rule(recv.on_data(1, false)), "more data messages than credits");
    RecvFlow::Totals before;
    assert_int_equal(recv.grant(before).arrived, 4);
    assert_string_equal(rule(recv.on_data(1, false)), fine);
}

void test_bytes_are_returned_when_half_is_consumed(void**) {
    for (const size_t size : {size_t{4096}, size_t{4097}, size_t{65535}}) {
        RecvFlow recv(size, 384);
        recv.on_data(size, false);
        assert_false(recv.credit_due());
        recv.consume(size / 2 - 1);
        assert_false(recv.credit_due());
        recv.consume(1);
        assert_true(recv.credit_due());
        RecvFlow::Totals before;
        assert_int_equal(recv.grant(before).consumed, size / 2);
        assert_false(recv.credit_due());
    }
}

void test_messages_are_returned_when_half_is_used_up(void**) {
    for (const uint64_t credits : {4, 5, 383, 384}) {
        RecvFlow recv(4096, credits);
        for (uint64_t i = 1; i <= (credits + 1) / 2; ++i) {
            assert_false(recv.credit_due());
            recv.on_data(1, false);
        }
        assert_true(recv.credit_due());
        RecvFlow::Totals before;
        recv.grant(before);
        assert_false(recv.credit_due());
    }
}

void test_credit_is_returned_at_once_when_it_is_wanted(void**) {
    RecvFlow recv(4096, 384);
    recv.on_data(1, true);
    assert_true(recv.credit_due());
    RecvFlow::Totals before;
    assert_int_equal(recv.grant(before).arrived, 1);
    assert_false(recv.credit_due());
    recv.on_data(1, false);
    assert_false(recv.credit_due());
}

void test_acknowledging_counts_as_returned(void**) {
    RecvFlow recv(4096, 4);
    for (int i = 0; i < 3; ++i) {
        recv.on_data(1, i == 2);
    }
    assert_int_equal(recv.acknowledge(2), 2);
    assert_true(recv.credit_due()); // one is left, and wanted
    assert_int_equal(recv.acknowledge(2), 1);
    assert_int_equal(recv.acknowledge(2), 0);
    assert_false(recv.credit_due());
    for (int i = 0; i < 4; ++i) {
        assert_string_equal(rule(recv.on_data(1, false)), fine);
    }
    RecvFlow::Totals before;
    assert_int_equal(recv.grant(before).arrived, 7); // totals stay totals
}

void test_unacknowledge_restores_what_acknowledge_gave(void**) {
    RecvFlow recv(4096, 4);
    for (int i = 0; i < 4; ++i) {
        recv.on_data(1, false);
    }
    assert_int_equal(recv.acknowledge(10), 4);
    recv.unacknowledge(4);
    assert_true(recv.credit_due());
    assert_string_equal(rule(recv.on_data(1, false)), "more data messages than credits");
}

void test_revoke_restores_what_grant_gave(void**) {
    RecvFlow recv(4096, 4);
    recv.on_data(1, true);
    RecvFlow::Totals before;
    recv.grant(before);
    recv.revoke(before);
    assert_true(recv.credit_due());
    recv.on_data(4095, false);
    recv.consume(4096);
    recv.grant(before);
    recv.revoke(before);
    assert_string_equal(rule(recv.on_data(1, false)), "data beyond the receive ring");
}

// ---- control messages

// The side of whoever has `held` messages of its peer not yet acknowledged.
struct Controls : ControlFlow {
    explicit Controls(uint64_t held = 0) {
        open(control_credits);
        for (uint64_t i = 0; i < held; ++i) {
            on_control();
        }
    }
    uint64_t send_all() {
        uint64_t count = 0;
        while (may_send()) {
            post();
            ++count;
        }
        return count;
    }
};

void test_no_control_message_before_the_peer_is_known(void**) { assert_false(ControlFlow().may_send()); }

void test_the_last_control_credit_is_kept_back(void**) { assert_int_equal(Controls().send_all(), control_credits - 1); }

void test_the_last_control_credit_is_for_an_acknowledgement(void**) {
    assert_int_equal(Controls(control_credits / 2 - 1).send_all(), control_credits - 1);
    assert_int_equal(Controls(control_credits / 2).send_all(), control_credits);
}

void test_control_credits_return_with_an_acknowledgement(void**) {
    Controls control;
    control.send_all();
    assert_string_equal(rule(control.on_acknowledged(3)), fine);
    assert_int_equal(control.send_all(), 3);
    assert_string_equal(rule(control.on_total(5)), fine);
    assert_int_equal(control.send_all(), 2);
}

void test_acknowledging_what_was_not_sent_is_refused(void**) {
    Controls control;
    control.post();
    assert_string_equal(rule(control.on_acknowledged(2)), "acknowledges control messages that were not sent");
    assert_string_equal(rule(control.on_total(2)), "acknowledges control messages that were not sent");
    assert_string_equal(rule(control.on_total(~uint64_t{0})), "acknowledges control messages that were not sent");
    assert_string_equal(rule(control.on_total(1)), fine);
    assert_string_equal(rule(control.on_total(0)), "acknowledges control messages that were not sent");
    assert_string_equal(rule(control.on_acknowledged(1)), "acknowledges control messages that were not sent");
    assert_string_equal(rule(control.on_acknowledged(0)), fine);
}

void test_a_flood_of_control_messages_is_refused(void**) {
    Controls control(control_credits - 1);
    assert_string_equal(rule(control.on_control()), fine);
    assert_string_equal(rule(control.on_control()), "more control messages than credits");
    assert_int_equal(control.report(3), 3);
    for (int i = 0; i < 3; ++i) {
        assert_string_equal(rule(control.on_control()), fine);
    }
    assert_string_equal(rule(control.on_control()), "more control messages than credits");
}

void test_report_tells_each_message_once(void**) {
    Controls control(10);
    assert_true(control.acknowledgement_due());
    assert_int_equal(control.report(7), 7);
    assert_false(control.acknowledgement_due());
    assert_int_equal(control.report(7), 3);
    assert_int_equal(control.report(7), 0);
    assert_int_equal(control.reported(), 10);
    control.unreport(3);
    assert_int_equal(control.unreported(), 3);
    assert_int_equal(control.report(7), 3);
}

void test_unpost_returns_a_control_credit(void**) {
    Controls control;
    control.send_all();
    control.unpost();
    assert_int_equal(control.sent(), control_credits - 2);
    assert_int_equal(control.send_all(), 1);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_ring_extent_ends_at_the_wrap),
        cmocka_unit_test(test_ring_takes_positions_and_lengths_of_64_bits),
        cmocka_unit_test(test_receive_counts_and_peeks),
        cmocka_unit_test(test_peek_splits_at_the_wrap),
        cmocka_unit_test(test_peek_beyond_what_is_readable_is_empty),
        cmocka_unit_test(test_data_that_just_fits_is_taken),
        cmocka_unit_test(test_room_that_the_peer_was_not_told_of_is_not_its_to_use),
        cmocka_unit_test(test_more_messages_than_credits_are_refused),
        cmocka_unit_test(test_bytes_are_returned_when_half_is_consumed),
        cmocka_unit_test(test_messages_are_returned_when_half_is_used_up),
        cmocka_unit_test(test_credit_is_returned_at_once_when_it_is_wanted),
        cmocka_unit_test(test_acknowledging_counts_as_returned),
        cmocka_unit_test(test_unacknowledge_restores_what_acknowledge_gave),
        cmocka_unit_test(test_revoke_restores_what_grant_gave),
        cmocka_unit_test(test_no_control_message_before_the_peer_is_known),
        cmocka_unit_test(test_the_last_control_credit_is_kept_back),
        cmocka_unit_test(test_the_last_control_credit_is_for_an_acknowledgement),
        cmocka_unit_test(test_control_credits_return_with_an_acknowledgement),
        cmocka_unit_test(test_acknowledging_what_was_not_sent_is_refused),
        cmocka_unit_test(test_a_flood_of_control_messages_is_refused),
        cmocka_unit_test(test_report_tells_each_message_once),
        cmocka_unit_test(test_unpost_returns_a_control_credit),
    };
    return RUN_TAP(tests);
}
