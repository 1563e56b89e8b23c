// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The sending half of a direction: what goes when and where, what is held together, and what can be taken back.
#include "prov/rstream/test/wire_test.hpp"

#include <limits>

#include "prov/rstream/wire/limits.hpp"

using namespace rstream::wire;

namespace {

constexpr size_t staging = 8192; // a chunk of a quarter of it counts as full

struct Sender : SendFlow {
    explicit Sender(size_t ring = 65536, uint64_t credits = 384, size_t max_chunk = 65536) : SendFlow(staging) {
        open(ring, credits, max_chunk);
    }
    // Stages and posts `length` bytes; 0 if they may not go now.
    size_t send(size_t length, bool urgent = false) {
        stage(length);
        return pump(urgent);
    }
    size_t pump(bool urgent = false) {
        const auto chunk = next(urgent);
        if (!chunk) {
            return 0;
        }
        post(*chunk);
        wanted = chunk->credit_wanted;
        bytes += chunk->length;
        ++count;
        return chunk->length;
    }
    // All that was posted arrived, was read, and its staging bytes are free again.
    bool settle() {
        release(bytes - released);
        released = bytes;
        return on_credit(bytes, count);
    }

    bool wanted = false;
    uint64_t bytes = 0;
    uint64_t released = 0;
    uint64_t count = 0;
};

void test_nothing_is_sent_before_the_peer_is_known(void**) {
    SendFlow send(staging);
    assert_int_equal(send.space(), staging);
    send.stage(10);
    assert_true(send.unposted());
    assert_false(send.next(true).has_value());
    assert_false(send.bypass(1).has_value());
}

void test_staging_space_returns_with_release_not_with_credit(void**) {
    Sender send;
    assert_extent(send.free_extent(100), 0, 100);
    assert_extent(send.free_extent(100000), 0, staging);
    assert_int_equal(send.send(6000), 6000);
    assert_int_equal(send.space(), staging - 6000);
    assert_true(send.on_credit(6000, 1));
    assert_int_equal(send.space(), staging - 6000);
    send.release(6000);
    assert_int_equal(send.space(), staging);
    assert_extent(send.free_extent(100000), 6000, staging - 6000);
}

void test_full_staging_ring_has_no_room(void**) {
    Sender send;
    send.stage(staging);
    assert_int_equal(send.space(), 0);
    assert_int_equal(send.free_extent(1).length, 0);
}

void test_chunk_splits_where_the_staging_ring_wraps(void**) {
    Sender send;
    send.send(6000);
    send.settle();
    send.stage(5000);
    auto chunk = send.next(false);
    assert_int_equal(chunk->staging_offset, 6000);
    assert_int_equal(chunk->ring_offset, 6000);
    assert_int_equal(chunk->length, staging - 6000);
    send.post(*chunk);
    chunk = send.next(false);
    assert_int_equal(chunk->staging_offset, 0);
    assert_int_equal(chunk->ring_offset, staging);
    assert_int_equal(chunk->length, 5000 - (staging - 6000));
}

void test_chunk_splits_where_the_peers_ring_wraps(void**) {
    Sender send(5000);
    send.send(4000);
    send.settle();
    send.stage(2000);
    const auto chunk = send.next(false);
    assert_int_equal(chunk->ring_offset, 4000);
    assert_int_equal(chunk->length, 1000);
    send.post(*chunk);
    assert_int_equal(send.next(false)->ring_offset, 0);
    assert_int_equal(send.next(false)->length, 1000);
}

void test_chunk_is_at_most_what_one_message_carries(void**) {
    Sender send(65536, 384, 1000);
    assert_int_equal(send.send(2500), 1000);
    assert_int_equal(send.pump(), 1000);
    assert_int_equal(send.pump(), 500);
    assert_int_equal(send.pump(), 0);
    assert_false(send.unposted());
}

void test_sending_stops_at_the_end_of_the_peers_ring(void**) {
    Sender send(4096);
    assert_int_equal(send.send(5000), 4096);
    assert_int_equal(send.pump(true), 0);
    assert_true(send.unposted());
    assert_true(send.on_credit(1, 1));
    assert_int_equal(send.pump(), 1);
    assert_int_equal(send.pump(), 0);
}

void test_sending_stops_when_the_messages_are_used_up(void**) {
    Sender send(65536, 4);
    for (int i = 0; i < 4; ++i) {
        assert_int_equal(send.send(10), 10);
    }
    assert_int_equal(send.send(10, true), 0);
    assert_int_equal(send.send(10), 0);
    assert_true(send.on_credit(0, 2));
    assert_int_equal(send.pump(), 20); // what waited shares a message
}

void test_a_burst_of_small_sends_goes_at_once(void**) {
    Sender send;
    for (uint64_t i = 1; i <= SendFlow::burst; ++i) {
        assert_int_equal(send.send(10), 10);
        assert_int_equal(send.wanted, i == SendFlow::burst); // the last one asks for the answer that ends the holding
    }
}

void after_a_burst(Sender& send) {
    for (uint64_t i = 0; i < SendFlow::burst; ++i) {
        send.send(10);
    }
}

void test_small_sends_behind_a_burst_are_held_together(void**) {
    Sender send;
    after_a_burst(send);
    for (int i = 0; i < 20; ++i) {
        assert_int_equal(send.send(10), 0);
    }
    assert_true(send.on_credit(0, SendFlow::burst - SendFlow::held_in_flight + 1));
    assert_int_equal(send.pump(), 200);
    assert_true(send.wanted);
}

void test_held_sends_wait_for_all_but_one_message(void**) {
    Sender send;
    after_a_burst(send);
    assert_true(send.on_credit(0, SendFlow::burst - SendFlow::held_in_flight));
    assert_int_equal(send.send(10), 0);
    assert_true(send.on_credit(0, SendFlow::burst - SendFlow::held_in_flight + 1));
    assert_int_equal(send.pump(), 10);
}

void test_urgent_sends_are_not_held(void**) {
    Sender send;
    after_a_burst(send);
    assert_int_equal(send.send(10), 0);
    assert_int_equal(send.pump(true), 10);
}

void test_holding_ends_when_a_full_chunk_has_gathered(void**) {
    Sender send;
    after_a_burst(send);
    assert_int_equal(send.send(staging / 4 - 1), 0);
    assert_int_equal(send.send(1), staging / 4);
    assert_true(send.wanted);
}

void test_a_bulk_send_ends_holding(void**) {
    Sender send;
    after_a_burst(send);
    assert_int_equal(send.send(staging / 4), staging / 4);
    assert_false(send.wanted);
    assert_int_equal(send.send(10), 10);
}

void test_holding_ends_when_the_line_falls_silent(void**) {
    Sender send;
    after_a_burst(send);
    assert_true(send.settle());
    for (uint64_t i = 1; i < SendFlow::burst; ++i) {
        assert_int_equal(send.send(10), 10);
        assert_false(send.wanted);
    }
}

void test_bulk_is_never_held(void**) {
    Sender send(65536, 384, 1024);
    for (int i = 0; i < 64; ++i) {
        assert_int_equal(send.send(1024), 1024);
        assert_false(send.wanted);
        send.release(1024);
    }
}

void test_bypass_goes_where_the_next_chunk_would(void**) {
    Sender send(5000);
    send.send(1000);
    const auto chunk = send.bypass(500);
    assert_true(chunk.has_value());
    assert_true(chunk->bypass);
    assert_int_equal(chunk->ring_offset, 1000);
    assert_int_equal(chunk->length, 500);
    send.post(*chunk);
    assert_int_equal(send.sent(), 1500);
    assert_int_equal(send.space(), staging - 1000);
}

void test_bypass_never_overtakes_staged_bytes(void**) {
    Sender send;
    send.stage(1);
    assert_false(send.bypass(10).has_value());
}

void test_bypass_needs_window_credit_and_one_run(void**) {
    Sender send(5000, 4);
    assert_false(send.bypass(5001).has_value());
    assert_true(send.bypass(5000).has_value());
    send.send(4000);
    assert_false(send.bypass(1001).has_value());
    send.settle();
    assert_false(send.bypass(1001).has_value()); // would wrap
    assert_true(send.bypass(1000).has_value());
    for (int i = 0; i < 4; ++i) {
        send.send(1);
    }
    assert_false(send.bypass(1).has_value());
}

void test_bypass_is_held_like_any_small_send(void**) {
    Sender send;
    after_a_burst(send);
    assert_false(send.bypass(10).has_value());
    assert_true(send.on_credit(0, SendFlow::burst - 1));
    assert_true(send.bypass(10)->credit_wanted);
    assert_true(send.on_credit(0, SendFlow::burst));
    assert_false(send.bypass(10)->credit_wanted); // the line is silent
}

void test_bypass_carries_no_more_than_a_message(void**) {
    Sender send(65536, 384, 1000);
    assert_true(send.bypass(1000).has_value());
    assert_false(send.bypass(1001).has_value());
}

void test_bypass_of_nothing_is_no_message(void**) {
    Sender send;
    assert_false(send.bypass(0).has_value());
}

void test_unpost_restores_the_chunk(void**) {
    Sender send;
    send.send(100);
    send.stage(200);
    const auto chunk = send.next(false);
    send.post(*chunk);
    send.unpost(*chunk);
    assert_int_equal(send.sent(), 100);
    assert_int_equal(send.in_flight(), 1);
    const auto again = send.next(false);
    assert_int_equal(again->staging_offset, chunk->staging_offset);
    assert_int_equal(again->ring_offset, chunk->ring_offset);
    assert_int_equal(again->length, chunk->length);
}

// Otherwise nobody has been asked for the credit that the held bytes wait for, and they wait for ever.
void test_unpost_takes_back_the_holding_that_the_chunk_began(void**) {
    Sender send;
    for (uint64_t i = 1; i < SendFlow::burst; ++i) {
        send.send(10);
    }
    send.stage(10);
    const auto chunk = send.next(false);
    assert_true(chunk->credit_wanted);
    send.post(*chunk);
    send.unpost(*chunk);
    assert_true(send.next(false).has_value());
}

void test_unpost_of_a_bypass_takes_back_the_holding_that_it_began(void**) {
    Sender send;
    for (uint64_t i = 1; i < SendFlow::burst; ++i) {
        send.send(10);
    }
    const auto chunk = send.bypass(10);
    assert_true(chunk->credit_wanted);
    send.post(*chunk);
    send.unpost(*chunk);
    assert_true(send.bypass(10).has_value());
}

void test_discard_drops_what_was_not_posted(void**) {
    Sender send;
    send.send(100);
    send.stage(50);
    send.discard();
    assert_false(send.unposted());
    assert_int_equal(send.space(), staging - 100);
    assert_extent(send.free_extent(10), 100, 10);
}

void test_credit_for_what_was_not_sent_is_refused(void**) {
    Sender send;
    send.send(100);
    assert_false(send.on_credit(101, 1));
    assert_false(send.on_credit(100, 2));
    assert_false(send.on_credit(std::numeric_limits<uint64_t>::max(), 1));
    assert_true(send.on_credit(100, 1));
}

void test_credit_that_goes_back_is_refused(void**) {
    Sender send;
    send.send(100);
    send.send(100);
    assert_true(send.on_credit(150, 2));
    assert_false(send.on_credit(149, 2));
    assert_false(send.on_credit(150, 1));
    assert_true(send.on_credit(150, 2)); // a repeated report is harmless
}

void test_credit_that_is_refused_changes_nothing(void**) {
    Sender send(4096, 4);
    send.send(4096);
    assert_false(send.on_credit(4096, 2));
    assert_false(send.on_credit(4097, 1));
    assert_int_equal(send.in_flight(), 1);
    assert_int_equal(send.send(1), 0);
}

void test_a_small_chunk_stays_in_its_page_if_so_agreed(void**) {
    SendFlow send(3 * SendFlow::page);
    send.open(3 * SendFlow::page, 384, 65536, true);
    send.stage(SendFlow::page - 23);
    send.post(*send.next(false));
    send.stage(24);
    const auto first = send.next(false);
    assert_true(first.has_value());
    assert_int_equal(first->staging_offset, SendFlow::page - 23);
    assert_int_equal(first->length, 23);
    send.post(*first);
    const auto second = send.next(false);
    assert_true(second.has_value());
    assert_int_equal(second->staging_offset, SendFlow::page);
    assert_int_equal(second->length, 1);
}

void test_a_chunk_that_is_not_small_may_lie_across_pages(void**) {
    for (const bool keep : {false, true}) {
        SendFlow send(3 * SendFlow::page);
        send.open(3 * SendFlow::page, 384, 65536, keep);
        send.stage(SendFlow::page - 23);
        send.post(*send.next(false));
        send.stage(SendFlow::small + 1);
        const auto chunk = send.next(false);
        assert_true(chunk.has_value());
        assert_int_equal(chunk->length, SendFlow::small + 1);
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_sent_before_the_peer_is_known),
        cmocka_unit_test(test_staging_space_returns_with_release_not_with_credit),
        cmocka_unit_test(test_full_staging_ring_has_no_room),
        cmocka_unit_test(test_chunk_splits_where_the_staging_ring_wraps),
        cmocka_unit_test(test_chunk_splits_where_the_peers_ring_wraps),
        cmocka_unit_test(test_chunk_is_at_most_what_one_message_carries),
        cmocka_unit_test(test_sending_stops_at_the_end_of_the_peers_ring),
        cmocka_unit_test(test_sending_stops_when_the_messages_are_used_up),
        cmocka_unit_test(test_a_burst_of_small_sends_goes_at_once),
        cmocka_unit_test(test_small_sends_behind_a_burst_are_held_together),
        cmocka_unit_test(test_held_sends_wait_for_all_but_one_message),
        cmocka_unit_test(test_urgent_sends_are_not_held),
        cmocka_unit_test(test_holding_ends_when_a_full_chunk_has_gathered),
        cmocka_unit_test(test_a_bulk_send_ends_holding),
        cmocka_unit_test(test_holding_ends_when_the_line_falls_silent),
        cmocka_unit_test(test_bulk_is_never_held),
        cmocka_unit_test(test_bypass_goes_where_the_next_chunk_would),
        cmocka_unit_test(test_bypass_never_overtakes_staged_bytes),
        cmocka_unit_test(test_bypass_needs_window_credit_and_one_run),
        cmocka_unit_test(test_bypass_is_held_like_any_small_send),
        cmocka_unit_test(test_bypass_carries_no_more_than_a_message),
        cmocka_unit_test(test_bypass_of_nothing_is_no_message),
        cmocka_unit_test(test_unpost_restores_the_chunk),
        cmocka_unit_test(test_unpost_takes_back_the_holding_that_the_chunk_began),
        cmocka_unit_test(test_unpost_of_a_bypass_takes_back_the_holding_that_it_began),
        cmocka_unit_test(test_discard_drops_what_was_not_posted),
        cmocka_unit_test(test_credit_for_what_was_not_sent_is_refused),
        cmocka_unit_test(test_credit_that_goes_back_is_refused),
        cmocka_unit_test(test_credit_that_is_refused_changes_nothing),
        cmocka_unit_test(test_a_small_chunk_stays_in_its_page_if_so_agreed),
        cmocka_unit_test(test_a_chunk_that_is_not_small_may_lie_across_pages),
    };
    return RUN_TAP(tests);
}
