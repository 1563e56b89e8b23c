// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Larger rings: who asks for one and when, what is said for it, which bytes lie where, and the lies that are found out.
#include "prov/rstream/test/wire_growing.hpp"

#include <algorithm>

#include "prov/rstream/wire/limits.hpp"

using namespace rstream::wire;

namespace {

void test_a_sender_asks_after_sixteen_stalls(void**) {
    Growing pair;
    for (uint32_t i = 0; i + 1 < RingWish::stall_limit; ++i) {
        pair.stall();
    }
    assert_false(pair.b.growth_wanted());
    pair.stall();
    assert_true(pair.b.growth_wanted());
    assert_string_equal(rule(pair.broken), fine);
}

void test_a_stall_counts_once(void**) {
    Growing pair;
    pair.fill();
    for (int i = 0; i < 100; ++i) {
        pair.run(pair.a, pair.b); // looked at again, with nothing new
    }
    assert_false(pair.b.growth_wanted());
}

// A staging ring no larger than the peer's ring: all of it is on its way, and the program has more.
void test_a_program_that_finds_no_room_counts_too(void**) {
    Growing pair;
    for (uint32_t i = 0; i < RingWish::stall_limit; ++i) {
        assert_true(pair.a.held_up()); // there is space at the peer
        pair.a.stage(first);
        pair.run(pair.a, pair.b);
        assert_false(pair.a.held_up());
        pair.b.consume(first);
        pair.run(pair.b, pair.a);
    }
    pair.run(pair.a, pair.b);
    assert_true(pair.b.growth_wanted());
}

void test_a_sender_that_is_never_held_up_does_not_ask(void**) {
    Growing pair;
    for (int i = 0; i < 1000; ++i) {
        pair.a.stage(first / 2);
        pair.run(pair.a, pair.b);
        pair.b.consume(pair.b.readable());
        pair.run(pair.b, pair.a);
    }
    assert_false(pair.b.growth_wanted());
    assert_int_equal(pair.b.ring_size(), first);
}

void test_a_peer_that_did_not_say_so_is_not_asked(void**) {
    Growing pair;
    pair.a.open(peer_hello(first), false, 65536); // an older peer, or one with a size of its own
    pair.stall_until_asked();
    assert_false(pair.b.growth_wanted());
    assert_string_equal(rule(pair.broken), fine);
}

void test_one_request_is_enough(void**) {
    Growing pair;
    pair.stall_until_asked();
    for (int i = 0; i < 100; ++i) {
        pair.stall();
    }
    assert_string_equal(rule(pair.broken), fine);
    assert_int_equal(pair.b.ring_size(), first);
}

void test_a_ring_that_was_offered_is_moved_to(void**) {
    for (const Mode mode : {Mode::immediates, Mode::headers}) {
        Growing pair(mode);
        pair.stall_until_asked();
        pair.b.supply(larger);
        assert_false(pair.b.growth_wanted());
        assert_int_equal(pair.b.ring_size(), first);
        assert_true(pair.b.control_due());
        pair.run(pair.b, pair.a);
        assert_true(pair.a.control_due());
        assert_true(pair.a.peer_ring() != larger);
        pair.run(pair.a, pair.b);
        assert_true(pair.a.peer_ring() == larger);
        assert_int_equal(pair.b.ring_size(), larger.size);
        assert_string_equal(rule(pair.broken), fine);
    }
}

void test_bytes_before_the_move_stay_in_the_old_ring(void**) {
    Growing pair;
    pair.stall_until_asked();
    pair.b.consume(pair.b.readable());
    pair.settle();
    pair.b.consume(pair.b.readable());
    pair.settle();
    pair.a.stage(100);
    pair.run(pair.a, pair.b);
    const Extent old = pair.b.peek(1000);
    pair.b.supply(larger);
    pair.settle();
    pair.a.stage(50);
    pair.run(pair.a, pair.b);
    assert_int_equal(pair.b.readable(), 150);
    assert_extent(pair.b.peek(1000), old.offset, 100);
    assert_false(pair.b.peek(1000).moved);
    assert_int_equal(pair.b.peek(1000, 100).length, 50);
    assert_true(pair.b.peek(1000, 100).moved);
    assert_false(pair.b.settle());
    pair.b.consume(99);
    assert_false(pair.b.settle());
    pair.b.consume(1);
    assert_true(pair.b.peek(1000).moved);
    assert_true(pair.b.settle());
    assert_false(pair.b.peek(1000).moved);
    assert_int_equal(pair.b.peek(1000).length, 50);
    assert_false(pair.b.settle());
}

void test_the_window_is_that_of_the_larger_ring(void**) {
    Growing pair;
    pair.grow();
    while (pair.b.readable() != 0) {
        pair.b.consume(pair.b.readable());
        pair.settle();
    }
    pair.a.move_staging(2 * larger.size);
    for (int i = 0; i < 10; ++i) {
        pair.a.stage(pair.a.free_extent(larger.size).length);
        pair.run(pair.a, pair.b);
    }
    assert_false(pair.a.held_up());                   // but for want of space there
    assert_true(pair.b.readable() > larger.size / 2); // of which the peer need not be told
    assert_string_equal(rule(pair.broken), fine);
}

void test_a_ring_grows_again_up_to_its_limit(void**) {
    Growing pair;
    pair.grow();
    assert_int_equal(pair.b.ring_size(), larger.size);
    pair.a.move_staging(limit);
    size_t size = larger.size;
    for (int i = 0; i < 1000; ++i) {
        pair.a.stage(pair.a.free_extent(limit).length);
        pair.run(pair.a, pair.b);
        pair.b.consume(pair.b.readable());
        (void)pair.b.settle();
        if (pair.b.growth_wanted()) {
            size = std::min(2 * size, limit);
            pair.b.supply({0, size, size});
        }
        pair.settle();
    }
    assert_int_equal(pair.b.ring_size(), limit);
    assert_int_equal(pair.a.peer_ring().size, limit);
    assert_false(pair.b.growth_wanted());
    assert_string_equal(rule(pair.broken), fine);
}

void test_no_third_ring_before_the_first_is_read(void**) {
    Growing pair;
    pair.stall_until_asked();
    pair.fill(); // there is something in the old ring
    pair.b.supply(larger);
    pair.run(pair.b, pair.a);
    pair.run(pair.a, pair.b);
    // The sender may ask again; the reader has not come to the move.
    assert_string_equal(rule(pair.b.on_control(pair.a_says(Control::Type::grow))), fine);
    assert_false(pair.b.growth_wanted());
    pair.b.consume(pair.b.readable());
    assert_true(pair.b.settle());
    assert_true(pair.b.growth_wanted());
}

// ---- the staging ring

void test_staged_bytes_leave_from_where_they_were_staged(void**) {
    Growing pair;
    pair.a.stage(8192);
    pair.run(pair.a, pair.b); // half of it fits
    pair.a.move_staging(20000);
    assert_true(pair.a.staging_moves());
    assert_int_equal(pair.a.space(), 20000 - 4096);
    const Extent extent = pair.a.free_extent(1000);
    assert_extent(extent, 8192, 1000);
    assert_true(extent.moved);
    pair.a.stage(1000);
    assert_false(pair.a.settle_staging());
    pair.b.consume(4096);
    pair.run(pair.b, pair.a);
    auto post = pair.a.next();
    assert_false(post->chunk.staging_moved);
    assert_int_equal(post->chunk.staging_offset, 4096);
    assert_int_equal(post->chunk.length, 4096);
    deliver(*post, pair.b);
    assert_false(pair.a.settle_staging()); // it is under way
    pair.a.release(4096);
    assert_true(pair.a.settle_staging());
    assert_false(pair.a.staging_moves());
    pair.b.consume(4096);
    pair.run(pair.b, pair.a);
    post = pair.a.next();
    assert_false(post->chunk.staging_moved); // it is the only one now
    assert_int_equal(post->chunk.staging_offset, 8192);
    assert_int_equal(post->chunk.length, 1000);
}

void test_an_abort_leaves_nothing_in_the_old_staging_ring(void**) {
    Growing pair;
    pair.a.stage(8192);
    pair.run(pair.a, pair.b);
    pair.a.move_staging(20000);
    pair.a.abort();
    assert_true(pair.a.settle_staging());
}

// ---- posts that the core refuses

void test_what_the_core_refuses_is_said_again(void**) {
    Growing pair;
    for (uint32_t i = 0; i + 1 < RingWish::stall_limit; ++i) {
        pair.stall();
    }
    pair.a.stage(std::min<size_t>(pair.a.space(), 2 * first));
    std::optional<Post> post;
    while ((post = pair.a.next()) && post->control.type != Control::Type::grow) {
        deliver(*post, pair.b);
        pair.a.release(post->chunk.length);
    }
    assert_true(post.has_value());
    pair.a.undo(*post);
    post = pair.a.next();
    assert_true(post->control.type == Control::Type::grow);
    assert_string_equal(rule(deliver(*post, pair.b)), fine);

    pair.b.supply(larger);
    while ((post = pair.b.next()) && post->control.type != Control::Type::offer) {
        deliver(*post, pair.a);
    }
    pair.b.undo(*post);
    post = pair.b.next();
    assert_true(post->control.type == Control::Type::offer);
    assert_int_equal(post->control.address, larger.address);
    assert_int_equal(post->control.key, larger.key);
    assert_int_equal(post->control.argument, larger.size);
    assert_string_equal(rule(deliver(*post, pair.a)), fine);

    const RemoteRing before = pair.a.peer_ring();
    while ((post = pair.a.next()) && post->control.type != Control::Type::move) {
        deliver(*post, pair.b);
    }
    pair.a.undo(*post);
    assert_true(pair.a.peer_ring() == before);
    post = pair.a.next();
    assert_true(post->control.type == Control::Type::move);
    assert_string_equal(rule(deliver(*post, pair.b)), fine);
    pair.settle();
    assert_string_equal(rule(pair.broken), fine);
}

void test_nothing_moves_behind_the_end(void**) {
    Growing pair;
    pair.stall_until_asked();
    while (pair.a.unposted()) {
        pair.b.consume(pair.b.readable());
        pair.settle();
    }
    pair.b.supply(larger);
    const auto offer = pair.b.next(); // crosses the end on its way
    assert_true(offer->control.type == Control::Type::offer);
    pair.a.finish(false);
    pair.run(pair.a, pair.b);
    assert_true(pair.b.peer_finished());
    assert_string_equal(rule(deliver(*offer, pair.a)), fine);
    assert_false(pair.a.control_due());
    pair.a.finish(true);
    pair.settle();
    assert_string_equal(rule(pair.broken), fine);
    assert_int_equal(pair.b.ring_size(), first);
}

void test_a_ring_for_a_stream_that_has_ended_is_not_wanted(void**) {
    Growing pair;
    pair.stall_until_asked();
    while (pair.a.unposted()) {
        pair.b.consume(pair.b.readable());
        pair.settle();
    }
    assert_true(pair.b.growth_wanted());
    pair.a.finish(false);
    pair.run(pair.a, pair.b);
    assert_false(pair.b.growth_wanted());
}

// ---- lies

void test_a_request_where_no_ring_may_grow_is_found_out(void**) {
    Pair pair;
    assert_string_equal(rule(pair.b.on_control(report(0, 0, 0, Control::Type::grow))),
                        "a request for a larger ring, where none may be made");
}

void test_a_second_request_is_found_out(void**) {
    Growing pair;
    assert_string_equal(rule(pair.b.on_control(report(0, 0, 0, Control::Type::grow))), fine);
    assert_string_equal(rule(pair.b.on_control(report(0, 0, 0, Control::Type::grow))),
                        "two requests for a larger ring at once");
}

void test_an_offer_that_was_not_asked_for_is_found_out(void**) {
    Growing pair;
    assert_string_equal(rule(pair.a.on_control(pair.b_offers(16384))), "an offer of a ring that was not asked for");
    pair.grow();
    assert_string_equal(rule(pair.a.on_control(pair.b_offers(32768))), "an offer of a ring that was not asked for");
}

void test_an_offer_of_no_sense_is_found_out(void**) {
    for (const size_t size : {size_t{0}, size_t{1}, first - 1, first, max_buffer + 1, size_t{UINT32_MAX}}) {
        Growing pair;
        pair.stall_until_asked();
        assert_string_equal(rule(pair.a.on_control(pair.b_offers(size))),
                            "an offer of a ring of the same size, or too small or too large");
    }
}

void test_an_offer_still_acknowledges_and_no_more_than_was_sent(void**) {
    Growing pair;
    pair.stall_until_asked();
    Control offer = pair.b_offers(16384);
    offer.control_arrived = 1000;
    assert_string_equal(rule(pair.a.on_control(offer)), "acknowledges control messages that were not sent");
}

void test_a_move_that_was_not_offered_is_found_out(void**) {
    const char* lie = "a move to a ring that was not offered";
    Pair pair;
    assert_string_equal(rule(pair.b.on_control(report(0, 0, 0, Control::Type::move))), lie);
    Growing growing;
    growing.stall_until_asked();
    assert_string_equal(rule(growing.b.on_control(growing.a_says(Control::Type::move))), lie);
    growing.b.supply(larger); // made, and not yet said
    assert_string_equal(rule(growing.b.on_control(growing.a_says(Control::Type::move))), lie);
}

void test_a_second_move_is_found_out(void**) {
    Growing pair;
    pair.grow();
    assert_string_equal(rule(pair.b.on_control(pair.a_says(Control::Type::move))),
                        "a move to a ring that was not offered");
}

void test_a_move_at_another_position_is_found_out(void**) {
    Growing pair;
    pair.stall_until_asked();
    pair.b.supply(larger);
    pair.run(pair.b, pair.a);
    assert_string_equal(rule(pair.b.on_control(pair.a_says(Control::Type::move, 17))),
                        "a move at another position than that of the data");
}

void test_growth_behind_the_end_is_found_out(void**) {
    for (const auto type : {Control::Type::grow, Control::Type::move}) {
        Growing pair;
        assert_string_equal(rule(pair.b.on_control(report(0, 0, 0, Control::Type::fin))), fine);
        assert_string_equal(rule(pair.b.on_control(report(0, 0, 0, type))),
                            "a larger ring for a stream that has ended");
    }
}

void test_data_beyond_the_larger_ring_is_found_out(void**) {
    Growing pair;
    pair.grow();
    assert_string_equal(rule(pair.b.on_data(immediate(larger.size + 1))), "data beyond the receive ring");
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_sender_asks_after_sixteen_stalls),
        cmocka_unit_test(test_a_stall_counts_once),
        cmocka_unit_test(test_a_program_that_finds_no_room_counts_too),
        cmocka_unit_test(test_a_sender_that_is_never_held_up_does_not_ask),
        cmocka_unit_test(test_a_peer_that_did_not_say_so_is_not_asked),
        cmocka_unit_test(test_one_request_is_enough),
        cmocka_unit_test(test_a_ring_that_was_offered_is_moved_to),
        cmocka_unit_test(test_bytes_before_the_move_stay_in_the_old_ring),
        cmocka_unit_test(test_the_window_is_that_of_the_larger_ring),
        cmocka_unit_test(test_a_ring_grows_again_up_to_its_limit),
        cmocka_unit_test(test_no_third_ring_before_the_first_is_read),
        cmocka_unit_test(test_staged_bytes_leave_from_where_they_were_staged),
        cmocka_unit_test(test_an_abort_leaves_nothing_in_the_old_staging_ring),
        cmocka_unit_test(test_what_the_core_refuses_is_said_again),
        cmocka_unit_test(test_nothing_moves_behind_the_end),
        cmocka_unit_test(test_a_ring_for_a_stream_that_has_ended_is_not_wanted),
        cmocka_unit_test(test_a_request_where_no_ring_may_grow_is_found_out),
        cmocka_unit_test(test_a_second_request_is_found_out),
        cmocka_unit_test(test_an_offer_that_was_not_asked_for_is_found_out),
        cmocka_unit_test(test_an_offer_of_no_sense_is_found_out),
        cmocka_unit_test(test_an_offer_still_acknowledges_and_no_more_than_was_sent),
        cmocka_unit_test(test_a_move_that_was_not_offered_is_found_out),
        cmocka_unit_test(test_a_second_move_is_found_out),
        cmocka_unit_test(test_a_move_at_another_position_is_found_out),
        cmocka_unit_test(test_growth_behind_the_end_is_found_out),
        cmocka_unit_test(test_data_beyond_the_larger_ring_is_found_out),
    };
    return RUN_TAP(tests);
}
