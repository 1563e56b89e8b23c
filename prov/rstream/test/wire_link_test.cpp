// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The rules of a link: what it posts and in which order, what `undo` takes back, and how a stream ends.
#include "prov/rstream/test/wire_test.hpp"

#include <array>

using namespace rstream::wire;

namespace {

bool same(const Post& x, const Post& y) {
    return x.kind == y.kind && x.chunk.staging_offset == y.chunk.staging_offset &&
           x.chunk.ring_offset == y.chunk.ring_offset && x.chunk.length == y.chunk.length &&
           x.chunk.bypass == y.chunk.bypass && x.chunk.credit_wanted == y.chunk.credit_wanted &&
           x.immediate.encode() == y.immediate.encode() && x.control == y.control && x.reported == y.reported &&
           x.granted_before.consumed == y.granted_before.consumed &&
           x.granted_before.arrived == y.granted_before.arrived;
}

// ---- data

void test_nothing_to_post_at_first(void**) {
    Pair pair;
    assert_false(pair.a.next().has_value());
    assert_false(pair.a.control_due());
    assert_false(pair.a.anything_unacknowledged());
    assert_false(pair.a.all_arrived());
}

void test_staged_bytes_become_readable_at_the_peer(void**) {
    for (const Mode mode : {Mode::immediates, Mode::headers}) {
        Pair pair(mode);
        pair.a.stage(1000);
        assert_true(pair.a.unposted());
        assert_int_equal(pair.run(pair.a, pair.b), 1);
        assert_string_equal(rule(pair.broken), fine);
        assert_extent(pair.b.peek(9999), 0, 1000);
        assert_true(pair.a.anything_unacknowledged());
    }
}

void test_header_tells_what_the_immediate_would(void**) {
    Pair pair(Mode::headers);
    pair.a.stage(1000);
    const auto post = pair.a.next();
    assert_true(post->kind == Post::Kind::data);
    assert_true(post->control.type == Control::Type::data);
    assert_int_equal(Immediate::decode(post->control.argument)->length, 1000);
}

void test_header_carries_the_counters(void**) {
    Pair pair(Mode::headers);
    pair.chatter(3);
    pair.b.consume(2);
    pair.b.stage(10);
    const auto post = pair.b.next();
    assert_int_equal(post->control.consumed, 2);
    assert_int_equal(post->control.data_arrived, 3);
    deliver(*post, pair.a);
    assert_false(pair.a.anything_unacknowledged());
}

void test_bypass_needs_immediates(void**) {
    assert_false(Pair(Mode::headers).a.bypass(10).has_value());
    Pair pair;
    const auto post = pair.a.bypass(10);
    assert_true(post->chunk.bypass);
    assert_string_equal(rule(deliver(*post, pair.b)), fine);
    assert_int_equal(pair.b.readable(), 10);
}

void test_one_message_carries_what_an_immediate_can_tell(void**) {
    constexpr size_t large = 2U * (Immediate::max_length + 1);
    Link link({large, 4096, 4});
    link.open(peer_hello(large), false, large);
    link.stage(large);
    assert_int_equal(link.next()->chunk.length, Immediate::max_length);
}

// What is longer than the immediate can tell would arrive as another length, and nobody would notice.
void test_bypass_carries_no_more_than_an_immediate_can_tell(void**) {
    constexpr size_t large = Immediate::max_length + 2;
    Link link({4096, 4096, 4});
    link.open(peer_hello(2 * large), false, large);
    const auto post = link.bypass(large);
    assert_true(!post || Immediate::decode(post->immediate.encode())->length == large);
}

// ---- credit

void test_credit_goes_before_data(void**) {
    Pair pair;
    for (int i = 0; i < 192; ++i) {
        pair.b.on_data(immediate(1));
    }
    pair.b.stage(10);
    assert_true(pair.b.control_due());
    const auto post = pair.b.next();
    assert_true(post->kind == Post::Kind::control);
    assert_true(post->control == report(0, 192, 0));
    assert_false(pair.b.control_due());
    assert_true(pair.b.next()->kind == Post::Kind::data);
}

void test_held_sends_get_their_credit_at_once(void**) {
    Pair pair;
    pair.chatter(16);
    pair.a.stage(1);
    assert_false(pair.a.next().has_value()); // held
    assert_true(pair.b.control_due());
    pair.settle();
    assert_false(pair.a.unposted());
    assert_string_equal(rule(pair.broken), fine);
}

void test_acknowledgements_ride_on_immediates(void**) {
    Pair pair;
    for (int i = 0; i < 3; ++i) {
        pair.a.on_control(report(0, 0, 0));
    }
    pair.a.stage(10);
    const auto post = pair.a.next();
    assert_int_equal(post->reported, 3);
    assert_int_equal(post->immediate.control_acks, 3);
    pair.a.stage(10);
    assert_int_equal(pair.a.next()->immediate.control_acks, 0);
}

// Two ends that read data acks.
struct AckingPair : Pair {
    AckingPair() {
        Hello hello = peer_hello();
        hello.features = Hello::feature_data_acks;
        a.open(hello, false, 65536);
        b.open(hello, false, 65536);
    }
};

void test_requests_and_replies_acknowledge_each_other(void**) {
    AckingPair pair;
    for (int i = 0; i < 10000; ++i) {
        pair.a.stage(1);
        assert_int_equal(pair.run(pair.a, pair.b), 1); // no control message
        pair.b.consume(1);
        const auto reply = pair.b.bypass(1); // one way to send or the other
        assert_true(reply.has_value());
        assert_string_equal(rule(deliver(*reply, pair.a)), fine);
        pair.a.consume(1);
    }
    assert_string_equal(rule(pair.broken), fine);
}

void test_only_short_data_acknowledges_data(void**) {
    AckingPair pair;
    pair.chatter(3);
    pair.b.stage(8192);
    assert_int_equal(pair.b.next()->immediate.data_acks, 0);
    const auto post = pair.b.bypass(Immediate::max_short_length);
    assert_int_equal(post->immediate.data_acks, 3);
    assert_int_equal(pair.b.bypass(1)->immediate.data_acks, 0); // told once
    pair.b.undo(*post);
    assert_int_equal(pair.b.bypass(1)->immediate.data_acks, 3);
}

void test_a_peer_that_reads_no_data_acks_gets_none(void**) {
    Pair pair;
    pair.chatter(3);
    assert_int_equal(pair.b.bypass(1)->immediate.data_acks, 0);
}

void test_control_messages_are_acknowledged_when_half_are_used_up(void**) {
    Pair pair;
    for (int i = 0; i < control_credits / 2; ++i) {
        assert_false(pair.a.next().has_value());
        pair.a.on_control(report(0, 0, 0));
    }
    assert_true(pair.a.control_due());
    assert_true(pair.a.next()->control == report(0, 0, control_credits / 2));
    assert_false(pair.a.next().has_value());
}

// Credit messages of a, one for each message of its peer, of which nothing comes back.
void use_up_control(Link& link) {
    for (int i = 0; i < control_credits - 1; ++i) {
        link.on_data(Immediate{1, 0, true}.encode());
        assert_true(link.next()->control.type == Control::Type::credit);
    }
}

void test_the_last_control_credit_is_kept_for_acknowledging(void**) {
    Pair pair;
    use_up_control(pair.a);
    pair.a.on_data(Immediate{1, 0, true}.encode());
    assert_false(pair.a.next().has_value());
    assert_false(pair.a.control_due()); // not while it cannot go
    for (int i = 0; i < control_credits / 2; ++i) {
        assert_false(pair.a.next().has_value());
        pair.a.on_control(report(0, 0, 0));
    }
    assert_true(pair.a.next()->control == report(0, control_credits, control_credits / 2));
}

// What `from` posts now, behind the first `count` of `posts`.
size_t gather(Link& from, std::array<Post, 64>& posts, size_t count) {
    for (auto post = from.next(); post && count < posts.size(); post = from.next()) {
        from.release(post->chunk.length);
        posts[count++] = *post;
    }
    return count;
}

// Full chunks while holding, each of which asks for credit; they cross on the wire, and so do the answers.
void test_two_ends_that_used_up_their_control_credits_free_each_other(void**) {
    Pair pair;
    Link* const links[] = {&pair.a, &pair.b};
    std::array<Post, 64> data[2];
    std::array<Post, 64> answers[2];
    size_t sent[2] = {};
    size_t answered[2] = {};
    for (int side = 0; side < 2; ++side) {
        for (int i = 0; i < 32; ++i) {
            links[side]->stage(i < 16 ? 64 : 1024); // in two halves: a full one at once would end the holding
            links[side]->stage(i < 16 ? 64 : 1024);
            sent[side] = gather(*links[side], data[side], sent[side]);
        }
        assert_int_equal(sent[side], 32);
    }
    for (size_t i = 0; i < 32; ++i) {
        for (int side = 0; side < 2; ++side) {
            assert_string_equal(rule(deliver(data[1 - side][i], *links[side])), fine);
            answered[side] = gather(*links[side], answers[side], answered[side]);
        }
    }
    for (int side = 0; side < 2; ++side) {
        for (size_t i = 0; i < answered[side]; ++i) {
            assert_string_equal(rule(deliver(answers[side][i], *links[1 - side])), fine);
        }
    }
    pair.settle();
    assert_false(pair.a.anything_unacknowledged());
    assert_false(pair.b.anything_unacknowledged());
    assert_string_equal(rule(pair.broken), fine);
}

void test_a_fin_waits_for_a_control_credit(void**) {
    Pair pair;
    use_up_control(pair.a);
    pair.a.finish(false);
    assert_false(pair.a.next().has_value());
    assert_true(pair.a.finishing());
    assert_false(pair.a.end_posted());
    assert_string_equal(rule(pair.a.on_data(immediate(1, 1))), fine);
    assert_true(pair.a.next()->control.type == Control::Type::fin);
}

void test_a_reader_that_waits_for_a_full_ring_gets_it(void**) {
    Pair pair(Mode::immediates, 4096);
    pair.a.stage(4096 + 1);
    pair.settle();
    pair.b.consume(1);
    pair.settle();
    assert_int_equal(pair.b.readable(), 4095); // one byte is no reason for a message
    pair.b.await_more();
    pair.settle();
    assert_int_equal(pair.b.readable(), 4096);
}

// ---- undo

void test_undo_of_data_restores_it(void**) {
    for (const Mode mode : {Mode::immediates, Mode::headers}) {
        Pair pair(mode);
        pair.chatter(3);
        pair.b.consume(2);
        pair.b.on_control(report(0, 0, 0));
        pair.b.stage(100);
        const auto post = pair.b.next();
        pair.b.undo(*post);
        assert_true(pair.b.unposted());
        auto again = pair.b.next();
        if (mode == Mode::headers && again->kind == Post::Kind::control) {
            again = pair.b.next(); // the credit that it carried may be told first: the wish for it is not forgotten
            assert_int_equal(again->chunk.ring_offset, post->chunk.ring_offset);
            assert_int_equal(again->chunk.length, post->chunk.length);
        } else {
            assert_true(same(*again, *post));
        }
    }
}

void test_undo_of_bypass_restores_it(void**) {
    Pair pair;
    pair.a.on_control(report(0, 0, 0));
    const auto post = pair.a.bypass(100);
    assert_int_equal(post->reported, 1);
    pair.a.undo(*post);
    assert_false(pair.a.anything_unacknowledged());
    assert_true(same(*pair.a.bypass(100), *post));
}

void test_undo_of_credit_restores_it(void**) {
    Pair pair;
    for (int i = 0; i < 192; ++i) {
        pair.b.on_data(immediate(1));
    }
    pair.b.on_control(report(0, 0, 0));
    const auto post = pair.b.next();
    assert_true(post->control == report(0, 192, 1));
    pair.b.undo(*post);
    assert_true(pair.b.control_due());
    assert_true(same(*pair.b.next(), *post));
    assert_false(pair.b.control_due());
}

void test_undo_of_an_end_restores_it(void**) {
    for (int kind = 0; kind < 4; ++kind) {
        Pair pair;
        switch (kind) {
        case 0:
            pair.a.finish(false);
            break;
        case 1:
            pair.a.finish(true);
            break;
        case 2:
            pair.a.finish_with_reset();
            break;
        default:
            pair.a.abort();
            break;
        }
        const auto post = pair.a.next();
        assert_true(pair.a.end_posted());
        pair.a.undo(*post);
        assert_false(pair.a.end_posted());
        assert_true(pair.a.finishing());
        assert_true(same(*pair.a.next(), *post));
        assert_true(pair.a.end_posted());
        assert_false(pair.a.next().has_value());
    }
}

void test_undo_of_a_second_fin_restores_it(void**) {
    Pair pair;
    pair.a.finish(false);
    pair.run(pair.a, pair.b);
    pair.a.finish(true);
    const auto post = pair.a.next();
    pair.a.undo(*post);
    pair.a.finish(true);
    assert_true(same(*pair.a.next(), *post));
    assert_false(pair.a.next().has_value());
}

void test_undo_at_the_end_of_a_burst_leaves_nothing_held(void**) {
    Pair pair;
    pair.chatter(15);
    pair.a.stage(1);
    const auto post = pair.a.next();
    assert_true(post->chunk.credit_wanted);
    pair.a.undo(*post);
    pair.settle();
    assert_false(pair.a.unposted());
    assert_int_equal(pair.b.readable(), 16);
}

// ---- ends

void test_fin_follows_all_that_is_staged(void**) {
    Pair pair(Mode::immediates, 4096);
    pair.a.stage(5000);
    pair.a.finish(false);
    assert_int_equal(pair.run(pair.a, pair.b), 1);
    assert_false(pair.b.peer_finished());
    pair.b.consume(4096);
    pair.settle();
    assert_int_equal(pair.b.readable(), 5000 - 4096);
    assert_true(pair.b.peer_finished());
    assert_false(pair.b.peer_closed());
    assert_string_equal(rule(pair.broken), fine);
}

void test_fin_lets_held_bytes_go(void**) {
    Pair pair;
    pair.chatter(16);
    pair.a.stage(1);
    assert_false(pair.a.next().has_value());
    pair.a.finish(false);
    assert_true(pair.a.next()->kind == Post::Kind::data);
    assert_true(pair.a.next()->control.type == Control::Type::fin);
}

void test_fin_is_acknowledged_at_once(void**) {
    for (const Mode mode : {Mode::immediates, Mode::headers}) {
        Pair pair(mode);
        pair.chatter(3);
        pair.a.finish(false);
        assert_true(pair.a.anything_unacknowledged()); // the end counts, as a byte does
        pair.run(pair.a, pair.b);
        assert_false(pair.a.all_arrived());
        assert_true(pair.a.anything_unacknowledged());
        assert_true(pair.b.control_due());
        assert_int_equal(pair.run(pair.b, pair.a), 1);
        assert_true(pair.a.all_arrived());
        assert_false(pair.a.anything_unacknowledged());
    }
}

void test_a_pending_fin_is_due(void**) {
    Pair pair;
    pair.a.finish(false);
    assert_true(pair.a.control_due());
    assert_true(pair.a.next().has_value());
    assert_false(pair.a.control_due());
}

void test_fin_is_posted_once(void**) {
    Pair pair;
    pair.a.finish(false);
    pair.a.finish(false);
    assert_int_equal(pair.run(pair.a, pair.b), 1);
    pair.a.finish(false);
    assert_int_equal(pair.run(pair.a, pair.b), 0);
}

void test_other_direction_flows_after_a_half_close(void**) {
    Pair pair(Mode::immediates, 4096);
    pair.a.finish(false);
    pair.settle();
    for (int i = 0; i < 100; ++i) {
        pair.b.stage(1000);
        pair.settle();
        assert_int_equal(pair.a.readable(), 1000);
        pair.a.consume(1000);
    }
    pair.b.finish(true);
    pair.settle();
    assert_true(pair.a.peer_closed());
    assert_true(pair.a.all_arrived() && pair.b.all_arrived());
    assert_string_equal(rule(pair.broken), fine);
}

void test_close_after_half_close_is_told(void**) {
    Pair pair;
    pair.a.finish(false);
    pair.settle();
    assert_false(pair.b.peer_closed());
    pair.a.finish(true);
    assert_false(pair.a.all_arrived());
    pair.settle();
    assert_true(pair.b.peer_closed());
    assert_true(pair.a.all_arrived());
    pair.a.finish(true);
    assert_int_equal(pair.run(pair.a, pair.b), 0);
    assert_string_equal(rule(pair.broken), fine);
}

void test_close_before_the_fin_is_posted_sends_one_fin(void**) {
    Pair pair;
    pair.a.finish(false);
    pair.a.finish(true);
    pair.a.finish(false);
    assert_int_equal(pair.run(pair.a, pair.b), 1);
    assert_true(pair.b.peer_closed());
}

void test_abort_drops_what_is_staged(void**) {
    Pair pair;
    pair.a.stage(1000);
    pair.a.abort();
    assert_false(pair.a.unposted());
    assert_int_equal(pair.run(pair.a, pair.b), 1);
    assert_true(pair.b.peer_reset());
    assert_int_equal(pair.b.readable(), 0);
}

void test_abort_after_fin_is_told(void**) {
    Pair pair;
    pair.a.finish(true);
    pair.settle();
    pair.a.abort();
    assert_int_equal(pair.run(pair.a, pair.b), 1);
    assert_true(pair.b.peer_reset());
    assert_string_equal(rule(pair.broken), fine);
}

void test_reset_behind_data_lets_the_peer_read(void**) {
    Pair pair;
    pair.a.stage(1000);
    pair.a.finish_with_reset();
    assert_int_equal(pair.run(pair.a, pair.b), 2);
    assert_int_equal(pair.b.readable(), 1000);
    assert_true(pair.b.peer_reset());
}

void test_nothing_follows_a_reset(void**) {
    for (const bool behind_data : {false, true}) {
        Pair pair;
        behind_data ? pair.b.finish_with_reset() : pair.b.abort();
        pair.run(pair.b, pair.a);
        pair.chatter(16);                              // they cross the reset, and the last one asks for credit
        assert_int_equal(pair.run(pair.b, pair.a), 0); // which would be a message behind the end
        assert_string_equal(rule(pair.broken), fine);
    }
}

void test_a_reset_is_posted_once(void**) {
    for (const bool behind_data : {false, true}) {
        Pair pair;
        pair.a.abort();
        pair.run(pair.a, pair.b);
        behind_data ? pair.a.finish_with_reset() : pair.a.abort();
        assert_int_equal(pair.run(pair.a, pair.b), 0);
        assert_string_equal(rule(pair.broken), fine);
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_to_post_at_first),
        cmocka_unit_test(test_staged_bytes_become_readable_at_the_peer),
        cmocka_unit_test(test_header_tells_what_the_immediate_would),
        cmocka_unit_test(test_header_carries_the_counters),
        cmocka_unit_test(test_bypass_needs_immediates),
        cmocka_unit_test(test_one_message_carries_what_an_immediate_can_tell),
        cmocka_unit_test(test_bypass_carries_no_more_than_an_immediate_can_tell),
        cmocka_unit_test(test_credit_goes_before_data),
        cmocka_unit_test(test_held_sends_get_their_credit_at_once),
        cmocka_unit_test(test_acknowledgements_ride_on_immediates),
        cmocka_unit_test(test_requests_and_replies_acknowledge_each_other),
        cmocka_unit_test(test_only_short_data_acknowledges_data),
        cmocka_unit_test(test_a_peer_that_reads_no_data_acks_gets_none),
        cmocka_unit_test(test_control_messages_are_acknowledged_when_half_are_used_up),
        cmocka_unit_test(test_the_last_control_credit_is_kept_for_acknowledging),
        cmocka_unit_test(test_two_ends_that_used_up_their_control_credits_free_each_other),
        cmocka_unit_test(test_a_fin_waits_for_a_control_credit),
        cmocka_unit_test(test_a_reader_that_waits_for_a_full_ring_gets_it),
        cmocka_unit_test(test_undo_of_data_restores_it),
        cmocka_unit_test(test_undo_of_bypass_restores_it),
        cmocka_unit_test(test_undo_of_credit_restores_it),
        cmocka_unit_test(test_undo_of_an_end_restores_it),
        cmocka_unit_test(test_undo_of_a_second_fin_restores_it),
        cmocka_unit_test(test_undo_at_the_end_of_a_burst_leaves_nothing_held),
        cmocka_unit_test(test_fin_follows_all_that_is_staged),
        cmocka_unit_test(test_fin_lets_held_bytes_go),
        cmocka_unit_test(test_fin_is_acknowledged_at_once),
        cmocka_unit_test(test_a_pending_fin_is_due),
        cmocka_unit_test(test_fin_is_posted_once),
        cmocka_unit_test(test_other_direction_flows_after_a_half_close),
        cmocka_unit_test(test_close_after_half_close_is_told),
        cmocka_unit_test(test_close_before_the_fin_is_posted_sends_one_fin),
        cmocka_unit_test(test_abort_drops_what_is_staged),
        cmocka_unit_test(test_abort_after_fin_is_told),
        cmocka_unit_test(test_reset_behind_data_lets_the_peer_read),
        cmocka_unit_test(test_nothing_follows_a_reset),
        cmocka_unit_test(test_a_reset_is_posted_once),
    };
    return RUN_TAP(tests);
}
