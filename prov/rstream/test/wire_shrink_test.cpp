// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Smaller rings, which need no request: when one may be offered, how it is moved to, and the lies that are found out.
#include <string_view>

#include "prov/rstream/test/wire_growing.hpp"

using namespace rstream::wire;

namespace {

void test_a_smaller_ring_needs_no_request(void**) {
    for (const Mode mode : {Mode::immediates, Mode::headers}) {
        Growing pair(mode);
        pair.grow_and_read();
        assert_true(pair.b.may_shrink());
        pair.b.supply(smaller);
        assert_false(pair.b.may_shrink());
        pair.settle();
        assert_true(pair.a.peer_ring() == smaller);
        assert_int_equal(pair.b.ring_size(), first);
        assert_true(pair.b.settle());
        assert_true(pair.b.may_shrink());
        assert_string_equal(rule(pair.broken), fine);
    }
}

void test_a_peer_that_does_not_support_it_keeps_its_ring(void**) {
    Growing pair;
    pair.b.open(peer_hello(), false, 65536);
    pair.grow_and_read();
    assert_false(pair.b.may_shrink());
}

void test_a_ring_with_unread_bytes_stays(void**) {
    Growing pair;
    pair.grow_and_read();
    pair.a.stage(100);
    pair.run(pair.a, pair.b);
    assert_false(pair.b.may_shrink());
}

// The peer has not been told that much of the larger ring was read: what is left counts for the smaller one only.
void test_the_smaller_ring_starts_empty(void**) {
    for (const Mode mode : {Mode::immediates, Mode::headers}) {
        Growing pair(mode);
        pair.grow_and_read();
        pair.a.stage(larger.size / 2 - 100);
        pair.run(pair.a, pair.b);
        pair.b.supply(smaller);
        pair.b.consume(pair.b.readable() - 10); // ten are still there when it moves
        pair.run(pair.b, pair.a);
        pair.run(pair.a, pair.b);
        assert_int_equal(pair.b.ring_size(), first);
        pair.a.stage(2 * first);
        pair.run(pair.a, pair.b);
        assert_string_equal(rule(pair.broken), fine);
        assert_int_equal(pair.b.readable(), first + 10);
        assert_false(pair.a.held_up());
        assert_false(pair.b.settle());
        assert_int_equal(pair.b.peek(100).length, 10);
        pair.b.consume(10);
        assert_true(pair.b.settle());
        pair.read_out();
        assert_false(pair.a.unposted());
        assert_string_equal(rule(pair.broken), fine);
    }
}

void test_a_request_that_crosses_an_offer_of_a_smaller_ring_is_void(void**) {
    Growing pair;
    pair.grow_and_read();
    pair.a.move_staging(2 * larger.size);
    std::optional<Post> request;
    while (!request) {
        pair.a.stage(pair.a.free_extent(2 * larger.size).length);
        while (auto post = pair.a.next()) {
            if (post->control.type == Control::Type::grow) {
                request = post;
                break;
            }
            assert_string_equal(rule(deliver(*post, pair.b)), fine);
            pair.a.release(post->kind == Post::Kind::data ? post->chunk.length : 0);
        }
        pair.b.consume(pair.b.readable());
        pair.run(pair.b, pair.a);
    }
    assert_true(pair.b.may_shrink());
    pair.b.supply(smaller);
    const auto offer = pair.b.next();
    assert_true(offer->control.type == Control::Type::offer);
    assert_string_equal(rule(deliver(*request, pair.b)), fine);
    assert_false(pair.b.growth_wanted()); // as long as the offer is open
    assert_string_equal(rule(deliver(*offer, pair.a)), fine);
    pair.settle();
    assert_int_equal(pair.b.ring_size(), first);
    assert_false(pair.b.growth_wanted());
    pair.b.consume(pair.b.readable());
    (void)pair.b.settle();
    pair.settle();
    for (int i = 0; i < 100 && !pair.b.growth_wanted(); ++i) { // it asks again, if the smaller one holds it up
        pair.a.stage(pair.a.free_extent(2 * larger.size).length);
        pair.settle();
        pair.b.consume(pair.b.readable());
        (void)pair.b.settle();
        pair.settle();
    }
    assert_true(pair.b.growth_wanted());
    assert_string_equal(rule(pair.broken), fine);
}

void test_a_move_to_a_smaller_ring_that_the_core_refuses_is_undone(void**) {
    Growing pair;
    pair.grow_and_read();
    pair.a.stage(larger.size / 2);
    pair.run(pair.a, pair.b);
    pair.b.consume(pair.b.readable());
    pair.b.supply(smaller);
    pair.run(pair.b, pair.a);
    for (int i = 0; i < 3; ++i) {
        const auto post = pair.a.next();
        assert_true(post->control.type == Control::Type::move);
        pair.a.undo(*post);
        assert_true(pair.a.peer_ring() == larger);
    }
    pair.a.stage(2 * first);
    pair.settle();
    assert_int_equal(pair.b.ring_size(), first);
    assert_string_equal(rule(pair.broken), fine);
    pair.read_out();
    assert_string_equal(rule(pair.broken), fine);
}

void test_an_empty_staging_ring_shrinks_at_once(void**) {
    Growing pair;
    pair.a.stage(100);
    pair.run(pair.a, pair.b);
    assert_int_equal(pair.a.unreleased(), 0);
    pair.a.move_staging(4096);
    assert_true(pair.a.settle_staging());
    assert_int_equal(pair.a.space(), 4096);
    assert_extent(pair.a.free_extent(5000), 100, 3996);
}

// ---- lies

void test_a_smaller_ring_of_no_sense_is_found_out(void**) {
    for (const size_t size : {size_t{0}, first - 1}) {
        Growing pair;
        pair.grow_and_read();
        assert_string_equal(rule(pair.a.on_control(pair.b_offers(size))),
                            "an offer of a ring of the same size, or too small or too large");
    }
    Growing pair;
    pair.a.open(peer_hello(), false, 65536); // which did not say that its ring changes
    assert_string_equal(rule(pair.a.on_control(pair.b_offers(first))), "an offer of a ring that was not asked for");
}

void test_a_second_offer_is_found_out(void**) {
    Growing pair;
    pair.grow_and_read();
    assert_string_equal(rule(pair.a.on_control(pair.b_offers(first))), fine);
    assert_string_equal(rule(pair.a.on_control(pair.b_offers(first))), "an offer of a ring that was not asked for");
}

// The core refuses the move, and while it is asked the peer makes an offer that is none.
void test_a_move_is_undone_behind_an_offer_that_is_found_out(void**) {
    Growing pair;
    pair.grow_and_read();
    pair.b.supply(smaller);
    pair.run(pair.b, pair.a);
    const auto post = pair.a.next();
    assert_true(post && post->control.type == Control::Type::move);
    assert_true(pair.a.peer_ring() == smaller);
    for (const size_t size : {larger.size, first, first - 1}) { // more than is there now, as much, and too little
        assert_true(rule(pair.a.on_control(pair.b_offers(size))) != std::string_view(fine));
    }
    pair.a.undo(*post);
    assert_true(pair.a.peer_ring() == larger);
}

// The core refuses the move, and while it is asked the peer, which can not have seen it, offers yet another ring. What
// is sent until the next move goes to the ring from before both, as far as that has space.
void test_a_move_is_undone_behind_a_second_offer(void**) {
    Growing pair;
    pair.grow_and_read();
    pair.fill();
    const size_t unread = pair.b.readable();
    assert_true(unread > first);
    assert_string_equal(rule(pair.a.on_control(pair.b_offers(first + 1))), fine);
    const auto refused = pair.a.next();
    assert_true(refused && refused->control.type == Control::Type::move);
    assert_string_equal(rule(pair.a.on_control(pair.b_offers(first))), fine);
    pair.a.undo(*refused);
    assert_true(pair.a.peer_ring() == larger);
    const auto second = pair.a.next();
    assert_true(second && second->control.type == Control::Type::move);
    assert_int_equal(pair.a.peer_ring().size, first);
    pair.a.undo(*second);
    assert_true(pair.a.peer_ring() == larger);
}

void test_data_beyond_the_smaller_ring_is_found_out(void**) {
    Growing pair;
    pair.grow_and_read();
    pair.b.supply(smaller);
    pair.settle();
    assert_string_equal(rule(pair.b.on_data(immediate(first + 1))), "data beyond the receive ring");
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_smaller_ring_needs_no_request),
        cmocka_unit_test(test_a_peer_that_does_not_support_it_keeps_its_ring),
        cmocka_unit_test(test_a_ring_with_unread_bytes_stays),
        cmocka_unit_test(test_the_smaller_ring_starts_empty),
        cmocka_unit_test(test_a_request_that_crosses_an_offer_of_a_smaller_ring_is_void),
        cmocka_unit_test(test_a_move_to_a_smaller_ring_that_the_core_refuses_is_undone),
        cmocka_unit_test(test_an_empty_staging_ring_shrinks_at_once),
        cmocka_unit_test(test_a_smaller_ring_of_no_sense_is_found_out),
        cmocka_unit_test(test_a_second_offer_is_found_out),
        cmocka_unit_test(test_a_move_is_undone_behind_an_offer_that_is_found_out),
        cmocka_unit_test(test_a_move_is_undone_behind_a_second_offer),
        cmocka_unit_test(test_data_beyond_the_smaller_ring_is_found_out),
    };
    return RUN_TAP(tests);
}
