// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// How writes to maps share the staging ring with the stream.
#include "prov/rstream/test/wire_maps.hpp"

using namespace rstream::wire;

namespace {

void test_a_write_takes_neither_window_nor_credit(void** state) {
    Ends& ends = ends_of(state);
    ends.give(0, 100000);
    ends.a.stage(8192);
    ends.run(ends.a, ends.b); // nobody reads: the window is full
    for (int i = 0; i < 5; ++i) {
        ends.write(4096, 1000);
        assert_int_equal(ends.run(ends.a, ends.b), 1);
        assert_int_equal(ends.last_write.chunk.length, 4096);
        assert_int_equal(ends.last_write.address, 0x10000 + 1000);
        assert_int_equal(ends.last_write.key, 77);
        assert_int_equal(ends.a.space(), 8192);
    }
    assert_string_equal(rule(ends.broken), fine);
}

void test_writes_and_the_stream_go_in_the_order_in_which_they_came(void** state) {
    Ends& ends = ends_of(state);
    ends.give(0, 1000);
    ends.a.stage(100);
    ends.write(50, 0);
    ends.a.stage(30);
    ends.write(20, 500);
    ends.a.stage(7);
    const std::array<std::pair<Post::Kind, size_t>, 5> order{{{Post::Kind::data, 100},
                                                              {Post::Kind::write, 50},
                                                              {Post::Kind::data, 30},
                                                              {Post::Kind::write, 20},
                                                              {Post::Kind::data, 7}}};
    size_t at = ends.a.next()->chunk.length; // and once more, after a refusal of the core
    assert_int_equal(at, 100);
    for (size_t i = 1; i < order.size(); ++i) {
        const auto first = ends.a.next();
        ends.a.undo(*first);
        const auto post = ends.a.next();
        assert_true(post->kind == order[i].first && first->kind == post->kind);
        assert_int_equal(post->chunk.length, order[i].second);
        assert_int_equal(post->chunk.staging_offset, at);
        at += post->chunk.length;
    }
    assert_false(ends.a.next().has_value());
    assert_false(ends.a.unposted());
}

void test_a_write_waits_for_stream_bytes_in_front_of_it(void** state) {
    Ends& ends = ends_of(state);
    ends.give(0, 1000);
    ends.a.stage(8192);
    ends.run(ends.a, ends.b);
    ends.a.stage(10);
    ends.write(10, 0);
    assert_int_equal(ends.run(ends.a, ends.b), 0);
    ends.b.consume(8192);
    ends.settle();
    assert_int_equal(ends.writes, 1);
}

void test_small_sends_are_not_held_back_in_front_of_a_write(void** state) {
    Ends& ends = ends_of(state);
    ends.give(0, 1000);
    for (int i = 0; i < 40; ++i) { // more than the burst that goes at once; none is acknowledged
        ends.a.stage(1);
        (void)ends.a.next();
    }
    assert_true(ends.a.unposted());
    ends.write(10, 0);
    ends.run(ends.a, ends.b);
    assert_int_equal(ends.writes, 1);
    assert_false(ends.a.unposted());
}

void test_what_follows_each_other_is_one_write(void** state) {
    Ends& ends = ends_of(state);
    ends.give(0, 1000);
    ends.write(10, 100);
    ends.write(10, 110);
    ends.write(10, 200);
    assert_int_equal(ends.run(ends.a, ends.b), 2);
    ends.write(10, 300);
    ends.a.stage(1);
    ends.write(10, 310);
    assert_int_equal(ends.run(ends.a, ends.b), 3);
}

void test_a_full_queue_of_writes_leaves_no_room_for_anything(void** state) {
    Ends& ends = ends_of(state);
    ends.give(0, 1000);
    for (size_t i = 0; i < MapWrites::capacity; ++i) {
        assert_true(ends.a.space() != 0);
        ends.write(1, 2 * i);
    }
    assert_int_equal(ends.a.space(), 0);
    assert_int_equal(ends.a.free_extent(100).length, 0);
    assert_int_equal(ends.a.unreleased(), MapWrites::capacity);
    (void)ends.a.next();
    assert_true(ends.a.free_extent(100).length != 0);
}

void test_a_small_write_goes_past_the_staging_ring(void** state) {
    Ends& ends = ends_of(state);
    assert_false(ends.a.bypass_write(10, 0).has_value()); // there is no map
    ends.give(0, 100);
    const auto post = ends.a.bypass_write(10, 90);
    assert_true(post->kind == Post::Kind::write && post->chunk.bypass);
    assert_int_equal(post->address, 0x10000 + 90);
    ends.a.undo(*post);
    assert_false(ends.a.bypass_write(11, 90).has_value());
    ends.a.stage(1);
    assert_false(ends.a.bypass_write(10, 0).has_value()); // something is in front of it
    assert_true(ends.a.next()->kind == Post::Kind::data);
    assert_true(ends.a.bypass_write(10, 0).has_value());
}

void test_writes_to_a_map_that_is_gone_are_dropped_and_their_room_returns(void** state) {
    Ends& ends = ends_of(state);
    ends.give(0, 1000);
    ends.a.stage(8192);
    ends.run(ends.a, ends.b);
    ends.a.stage(10);
    ends.write(100, 0);
    (void)ends.b_maps.withdraw(0, true);
    ends.settle(); // the answer does not wait for the stream
    assert_true(ends.b_maps.withdraw(0, true));
    ends.b_maps.forget(0);
    ends.give(0, 1000, 0x50000, 99); // another one at the same offsets is not what they were for
    ends.b.consume(8192);
    ends.settle();
    assert_int_equal(ends.writes, 0);
    assert_int_equal(ends.skipped, 100);
    assert_int_equal(ends.a.space(), 8192);
    assert_string_equal(rule(ends.broken), fine);
}

void test_the_end_of_the_stream_comes_behind_the_writes(void** state) {
    Ends& ends = ends_of(state);
    ends.give(0, 1000);
    ends.a.stage(10);
    ends.write(100, 0);
    ends.a.finish(true);
    assert_true(ends.a.next()->kind == Post::Kind::data);
    assert_true(ends.a.next()->kind == Post::Kind::write);
    assert_true(ends.a.next()->control.type == Control::Type::fin);
}

void test_a_reset_drops_the_writes(void** state) {
    Ends& ends = ends_of(state);
    ends.give(0, 1000);
    ends.write(100, 0);
    ends.a.abort();
    assert_true(ends.a.next()->control.type == Control::Type::rst);
    assert_false(ends.a.next().has_value());
    assert_false(ends.a.unposted());
}

void test_a_map_can_be_given_back_after_the_end_of_the_stream(void** state) {
    Ends& ends = ends_of(state);
    ends.give(0, 1000);
    ends.a.finish(true);
    ends.b.finish(true);
    ends.settle();
    (void)ends.b_maps.withdraw(0, true);
    ends.settle();
    assert_int_equal(ends.b_maps.answered(), 1);
    assert_string_equal(rule(ends.broken), fine);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        ENDS_TEST(test_a_write_takes_neither_window_nor_credit),
        ENDS_TEST(test_writes_and_the_stream_go_in_the_order_in_which_they_came),
        cmocka_unit_test_setup_teardown(test_writes_and_the_stream_go_in_the_order_in_which_they_came,
                                        make_ends_with_headers, drop_ends),
        ENDS_TEST(test_a_write_waits_for_stream_bytes_in_front_of_it),
        ENDS_TEST(test_small_sends_are_not_held_back_in_front_of_a_write),
        ENDS_TEST(test_what_follows_each_other_is_one_write),
        ENDS_TEST(test_a_full_queue_of_writes_leaves_no_room_for_anything),
        ENDS_TEST(test_a_small_write_goes_past_the_staging_ring),
        ENDS_TEST(test_writes_to_a_map_that_is_gone_are_dropped_and_their_room_returns),
        ENDS_TEST(test_the_end_of_the_stream_comes_behind_the_writes),
        ENDS_TEST(test_a_reset_drops_the_writes),
        ENDS_TEST(test_a_map_can_be_given_back_after_the_end_of_the_stream),
    };
    return RUN_TAP(tests);
}
