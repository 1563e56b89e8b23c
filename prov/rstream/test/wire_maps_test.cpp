// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Maps: their messages, which offsets are given, and what the two ends may say of them.
#include "prov/rstream/test/wire_maps.hpp"

#include <array>
#include <cstring>

using namespace rstream::wire;

namespace {

using Type = MapMessage::Type;

// ---- messages

using Bytes = std::array<std::byte, MapMessage::size>;

Bytes encoded(const MapMessage& message) {
    Bytes bytes{};
    message.encode(bytes);
    return bytes;
}

MapMessage announced(uint64_t offset, uint64_t length, uint64_t address = 0, uint64_t key = 77) {
    return {Type::map, offset, length, address, key};
}

void test_map_message_round_trip(void**) {
    for (const MapMessage& message :
         {announced(0, 1), announced(4096, 0x123456789abc, 0xfedcba9876543210, 0x1122334455667788),
          announced(MapMessage::end_of_offsets - 5, 5), announced(7, MapMessage::max_length, 1, ~uint64_t{0}),
          MapMessage{Type::unmap, 99}, MapMessage{Type::unmapped, MapMessage::end_of_offsets - 1}}) {
        const auto back = MapMessage::decode(encoded(message));
        assert_true(back.has_value());
        assert_true(*back == message);
    }
}

void test_map_message_layout(void**) {
    const auto bytes = encoded(announced(0x0807060504030201, 0xccbb44332211, 0x1817161514131211, 0x2827262524232221));
    const unsigned char expected[] = {32,   0,    0xbb, 0xcc, 0x11, 0x22, 0x33, 0x44, 1,    2,    3,
                                      4,    5,    6,    7,    8,    0x11, 0x12, 0x13, 0x14, 0x15, 0x16,
                                      0x17, 0x18, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28};
    assert_memory_equal(bytes.data(), expected, sizeof(expected));
}

void test_map_message_of_another_form_is_refused(void**) {
    const auto refused = [](const MapMessage& message) { return !MapMessage::decode(encoded(message)).has_value(); };
    assert_true(refused(announced(0, 0)));
    assert_true(refused(announced(MapMessage::end_of_offsets, 1)));
    assert_true(refused(announced(MapMessage::end_of_offsets - 4, 5)));
    assert_true(refused(announced(~uint64_t{0}, 2)));
    assert_true(refused(announced(0, 2, ~uint64_t{0} - 1)));
    assert_true(refused({Type::unmap, 0, 1}));
    assert_true(refused({Type::unmap, 0, 0, 1}));
    assert_true(refused({Type::unmapped, 0, 0, 0, 1}));
    assert_true(refused({Type::unmapped, MapMessage::end_of_offsets}));
    for (const int type : {0, 1, 4, 31, 35, 255}) {
        assert_true(refused({static_cast<Type>(type), 1}));
    }
    Bytes bytes = encoded(announced(0, 1));
    bytes[1] = std::byte{1};
    assert_false(MapMessage::decode(bytes).has_value());
    assert_false(MapMessage::decode(std::span(bytes).first(31)).has_value());
}

void test_map_and_other_messages_are_told_apart(void**) {
    for (const Type type : {Type::map, Type::unmap, Type::unmapped}) {
        assert_false(Control::decode(encoded({type, 1, type == Type::map ? 1U : 0U})).has_value());
    }
    Bytes bytes{};
    Control{}.encode(bytes);
    assert_false(MapMessage::decode(bytes).has_value());
}

void test_hello_carries_the_number_of_maps(void**) {
    std::array<std::byte, Hello::size> bytes{};
    Hello hello = peer_hello();
    hello.maps = 0x1234;
    hello.encode(bytes);
    Hello back;
    assert_int_equal(Hello::parse(bytes, back), Hello::Error::none);
    assert_int_equal(back.maps, 0x1234);
    peer_hello().encode(bytes);
    assert_int_equal(Hello::parse(bytes, back), Hello::Error::none);
    assert_int_equal(back.maps, 0); // as an end that knows no maps says it
}

uint64_t chosen(Maps& maps, uint64_t length) {
    uint64_t offset = Maps::any;
    assert_int_equal(maps.claim(offset, length), Maps::Claim::made);
    return offset;
}

// ---- offsets

void test_chosen_offsets_keep_apart_and_do_not_come_again(void** state) {
    Maps& maps = ends_of(state).b_maps;
    const uint64_t first = chosen(maps, 5000);
    const uint64_t second = chosen(maps, 1);
    assert_true(second >= first + 5000 + 4096);
    maps.forget(first);
    maps.forget(second);
    assert_true(chosen(maps, 5000) > second);
}

void test_chosen_offsets_avoid_those_that_were_given(void** state) {
    Maps& maps = ends_of(state).b_maps;
    uint64_t given = 100;
    assert_int_equal(maps.claim(given, 100000), Maps::Claim::made);
    assert_true(chosen(maps, 1000) >= 100100);
}

void test_offsets_that_are_taken_are_refused(void** state) {
    Maps& maps = ends_of(state).b_maps;
    uint64_t offset = 1000;
    assert_int_equal(maps.claim(offset, 100), Maps::Claim::made);
    for (const uint64_t other : {901, 1000, 1099}) {
        offset = other;
        assert_int_equal(maps.claim(offset, 100), Maps::Claim::taken);
    }
    offset = 1100;
    assert_int_equal(maps.claim(offset, 100), Maps::Claim::made);
    offset = 900;
    assert_int_equal(maps.claim(offset, 100), Maps::Claim::made);
}

void test_no_more_maps_than_the_peer_knows(void** state) {
    Maps& maps = ends_of(state).b_maps;
    uint64_t last = 0;
    for (int i = 0; i < 4; ++i) {
        last = chosen(maps, 10);
    }
    uint64_t offset = Maps::any;
    assert_int_equal(maps.claim(offset, 10), Maps::Claim::full);
    maps.forget(last);
    assert_int_equal(maps.claim(offset, 10), Maps::Claim::made);
}

// ---- the peer's maps

void test_a_map_is_known_once_it_was_announced(void** state) {
    Ends& ends = ends_of(state);
    assert_false(ends.a_maps.find(5000).has_value());
    ends.give(5000, 100, 0x10000, 42);
    const auto target = ends.a_maps.find(5040);
    assert_true(target.has_value());
    assert_int_equal(target->address, 0x10000 + 40);
    assert_int_equal(target->length, 60);
    assert_int_equal(target->key, 42);
    assert_true(ends.a_maps.covers(5000, 100));
    assert_true(ends.a_maps.covers(4999, 0));
    assert_false(ends.a_maps.covers(4999, 2));
    assert_false(ends.a_maps.covers(5000, 101));
    assert_false(ends.a_maps.covers(5100, 1));
    ends.give(5100, 100, 0x20000, 43);
    assert_true(ends.a_maps.covers(5000, 200));
    assert_int_equal(ends.a_maps.find(5100)->key, 43);
    assert_string_equal(rule(ends.broken), fine);
}

// Where a message is not written in order, the end of a write comes after the rest of it.
void test_the_end_of_a_write_may_be_a_message_of_its_own(void** state) {
    Ends& ends = ends_of(state);
    ends.give(0, 1000, 0x10000, 42);
    for (const bool apart : {false, true}) {
        ends.a.stage_write(92, *ends.a_maps.find(0));
        ends.a.stage_write(8, *ends.a_maps.find(92), apart);
        const auto first = ends.a.next();
        assert_true(first && first->kind == Post::Kind::write);
        assert_int_equal(first->chunk.length, apart ? 92 : 100);
        const auto second = ends.a.next();
        assert_int_equal(second.has_value(), apart);
        if (second) {
            ends.a.undo(*second); // and is one even if it could not go at once
            const auto again = ends.a.next();
            assert_int_equal(again->chunk.length, 8);
            assert_int_equal(again->address, 0x10000 + 92);
        }
    }
}

void test_an_announcement_goes_before_what_is_staged_after_it(void** state) {
    Ends& ends = ends_of(state);
    const uint64_t offset = chosen(ends.a_maps, 10);
    ends.a_maps.announce(offset, 0, 7);
    ends.a.stage(100);
    assert_false(ends.a.bypass(1).has_value());
    const auto first = ends.a.next();
    assert_true(first->kind == Post::Kind::map);
    assert_true(ends.a.next()->kind == Post::Kind::data);
}

void test_announcements_wait_for_credit_and_data_waits_for_them(void** state) {
    Ends& ends = ends_of(state);
    int sent = 0;
    for (int i = 0; i < 40; ++i) { // told and taken back, with a peer that never answers
        const uint64_t offset = chosen(ends.a_maps, 10);
        ends.a_maps.announce(offset, 0, 7);
        if (ends.a.next()) {
            ++sent;
        }
        (void)ends.a_maps.withdraw(offset, false);
        if (ends.a.next()) {
            ++sent;
        }
        if (i == 3) {
            break; // four is what the peer knows
        }
    }
    assert_int_equal(sent, 8);
    Maps many(0, 100);
    ends.a.open(peer_hello(8192, 64), false, 65536, &many);
    for (int i = 0; i < 100; ++i) {
        many.announce(chosen(many, 10), 0, 7);
    }
    ends.a.stage(10);
    while (const auto post = ends.a.next()) {
        assert_true(post->kind == Post::Kind::map);
        ++sent;
    }
    assert_int_equal(sent, control_credits - 1); // the last is for who acknowledges
    assert_false(ends.a.control_due());
    assert_string_equal(rule(ends.a.on_control(report(0, 0, 15))), fine);
    assert_true(ends.a.control_due());
    assert_true(ends.a.next()->kind == Post::Kind::map);
    ends.a.open(peer_hello(8192, 64), false, 65536, nullptr);
}

// ---- withdrawing

void test_withdrawing_is_a_handshake(void** state) {
    Ends& ends = ends_of(state);
    ends.give(0, 100);
    assert_false(ends.b_maps.withdraw(0, true));
    assert_int_equal(ends.b_maps.awaited(), 1);
    assert_int_equal(ends.run(ends.b, ends.a), 1);
    assert_false(ends.a_maps.find(0).has_value()); // from here on
    assert_false(ends.b_maps.withdraw(0, true));
    assert_int_equal(ends.b_maps.answered(), 0);
    assert_int_equal(ends.run(ends.a, ends.b), 1);
    assert_int_equal(ends.b_maps.answered(), 1);
    assert_true(ends.b_maps.withdraw(0, true));
    ends.b_maps.forget(0);
    assert_int_equal(ends.b_maps.answered(), 0);
    assert_int_equal(ends.b_maps.awaited(), 0);
    ends.give(0, 200); // the offsets are free again
    assert_true(ends.a_maps.covers(0, 200));
    assert_string_equal(rule(ends.broken), fine);
}

void test_who_does_not_wait_is_not_told(void** state) {
    Ends& ends = ends_of(state);
    ends.give(0, 100);
    assert_false(ends.b_maps.withdraw(0, true));
    assert_false(ends.b_maps.withdraw(0, false));
    ends.settle();
    assert_int_equal(ends.b_maps.awaited(), 0);
    assert_int_equal(ends.b_maps.answered(), 0);
    assert_true(ends.b_maps.withdraw(0, false));
}

void test_what_the_peer_never_heard_of_is_withdrawn_at_once(void** state) {
    Ends& ends = ends_of(state);
    const uint64_t offset = chosen(ends.b_maps, 10);
    assert_true(ends.b_maps.withdraw(offset, true));
    ends.b_maps.forget(offset);
    const uint64_t second = chosen(ends.b_maps, 10);
    ends.b_maps.announce(second, 0, 7);
    assert_true(ends.b_maps.withdraw(second, true));
    ends.b_maps.forget(second);
    assert_false(ends.b.next().has_value());
    assert_int_equal(ends.b_maps.answered() + ends.b_maps.awaited(), 0);
}

void test_a_map_that_was_forgotten_keeps_its_offsets_until_the_answer(void** state) {
    Ends& ends = ends_of(state);
    ends.give(0, 100);
    assert_false(ends.b_maps.withdraw(0, true));
    ends.b_maps.forget(0); // the peer sends nothing any more, so its answer is not waited for
    uint64_t offset = 50;
    assert_int_equal(ends.b_maps.claim(offset, 10), Maps::Claim::taken);
    ends.settle();
    assert_string_equal(rule(ends.broken), fine);
    assert_int_equal(ends.b_maps.claim(offset, 10), Maps::Claim::made);
}

void test_undo_of_each_message(void** state) {
    Ends& ends = ends_of(state);
    const uint64_t offset = chosen(ends.b_maps, 10);
    ends.b_maps.announce(offset, 5, 6);
    const auto post = ends.b.next();
    ends.b.undo(*post);
    assert_true(ends.b.control_due());
    const auto again = ends.b.next();
    assert_true(again->map == post->map);
    assert_null(ends.carry(*again, ends.b, ends.a));

    (void)ends.b_maps.withdraw(offset, true);
    const auto unmap = ends.b.next();
    ends.b.undo(*unmap);
    ends.run(ends.b, ends.a);
    const auto answer = ends.a.next();
    assert_true(answer->map.type == Type::unmapped);
    ends.a.undo(*answer);
    assert_false(ends.a_maps.find(offset).has_value());
    ends.run(ends.a, ends.b);
    assert_int_equal(ends.b_maps.answered(), 1);
    assert_string_equal(rule(ends.broken), fine);
}

void test_undo_of_an_announcement_that_was_withdrawn_meanwhile(void** state) {
    Ends& ends = ends_of(state);
    const uint64_t offset = chosen(ends.b_maps, 10);
    ends.b_maps.announce(offset, 5, 6);
    const auto post = ends.b.next();
    assert_false(ends.b_maps.withdraw(offset, true)); // by another thread
    ends.b.undo(*post);
    assert_int_equal(ends.b_maps.answered(), 1);
    assert_false(ends.b.next().has_value()); // the peer is not asked for what it does not know
    assert_true(ends.b_maps.withdraw(offset, true));
}

// ---- lies

void test_rules_about_maps(void** state) {
    Ends& ends = ends_of(state);
    const auto says = [&](const MapMessage& message) { return rule(ends.a.on_map(message)); };
    assert_string_equal(says({Type::unmap, 0}), "asks back memory that is not mapped");
    assert_string_equal(says({Type::unmapped, 0}), "gives back memory that it was not asked for");
    assert_string_equal(says(announced(100, 100)), fine);
    for (const MapMessage& over : {announced(100, 100), announced(0, 101), announced(199, 1), announced(150, 1000)}) {
        assert_string_equal(says(over), "a map over another");
    }
    assert_string_equal(says({Type::unmap, 150}), "asks back memory that is not mapped");
    assert_string_equal(says({Type::unmap, 100}), fine);
    assert_string_equal(says({Type::unmap, 100}), "asks back memory that is not mapped");
    assert_string_equal(says(announced(100, 1)), "a map over another"); // our answer is not sent yet
    assert_string_equal(says(announced(200, 1)), fine);
    assert_string_equal(says(announced(300, 1)), fine);
}

void test_more_maps_than_were_offered(void** state) {
    Ends& ends = ends_of(state);
    for (uint64_t i = 0; i < 4; ++i) {
        assert_string_equal(rule(ends.a.on_map(announced(i * 10, 10))), fine);
    }
    assert_string_equal(rule(ends.a.on_map(announced(1000, 1))), "more maps than were offered");
    assert_string_equal(rule(ends.a.on_map({Type::unmap, 0})), fine);
    assert_string_equal(rule(ends.a.on_map(announced(1000, 1))), "more maps than were offered"); // it still counts
    (void)ends.a.next();
    assert_string_equal(rule(ends.a.on_map(announced(1000, 1))), fine);
}

void test_maps_where_none_were_agreed_on(void**) {
    Pair pair;
    assert_string_equal(rule(pair.a.on_map(announced(0, 1))), "a map where none was agreed on");
    assert_string_equal(rule(pair.b.on_map({Type::unmapped, 0})), "a map where none was agreed on");
}

void test_maps_are_control_messages_that_count(void** state) {
    Ends& ends = ends_of(state);
    for (int i = 0; i < control_credits / 2; ++i) {
        assert_string_equal(rule(ends.a.on_map(announced(0, 1))), fine);
        assert_string_equal(rule(ends.a.on_map({Type::unmap, 0})), fine);
        if (i < control_credits / 2 - 1) {
            (void)ends.a_maps.next(); // answered, and not by a message that acknowledges
        }
    }
    assert_string_equal(rule(ends.a.on_map(announced(5, 1))), "more control messages than credits");
}

void test_a_map_behind_the_reset_of_the_stream(void** state) {
    Ends& ends = ends_of(state);
    assert_string_equal(rule(ends.a.on_control(report(0, 0, 0, Control::Type::rst))), fine);
    assert_string_equal(rule(ends.a.on_map(announced(0, 1))), "a control message behind the end of the stream");
}

void test_a_message_as_it_came(void** state) {
    Ends& ends = ends_of(state);
    const Bytes map = encoded(announced(0, 1));
    assert_string_equal(rule(ends.a.on_message(map)), fine);
    assert_true(ends.a_maps.covers(0, 1));
    Bytes control{};
    report(0, 0, 0).encode(control);
    assert_string_equal(rule(ends.a.on_message(control)), fine);
    Bytes noise{};
    noise[0] = std::byte{200};
    assert_string_equal(rule(ends.a.on_message(noise)), "a message of no known form");
    assert_string_equal(rule(ends.a.on_message(std::span(map).first(20))), "a message of no known form");
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_map_message_round_trip),
        cmocka_unit_test(test_map_message_layout),
        cmocka_unit_test(test_map_message_of_another_form_is_refused),
        cmocka_unit_test(test_map_and_other_messages_are_told_apart),
        cmocka_unit_test(test_hello_carries_the_number_of_maps),
        ENDS_TEST(test_chosen_offsets_keep_apart_and_do_not_come_again),
        ENDS_TEST(test_chosen_offsets_avoid_those_that_were_given),
        ENDS_TEST(test_offsets_that_are_taken_are_refused),
        ENDS_TEST(test_no_more_maps_than_the_peer_knows),
        ENDS_TEST(test_a_map_is_known_once_it_was_announced),
        ENDS_TEST(test_the_end_of_a_write_may_be_a_message_of_its_own),
        ENDS_TEST(test_an_announcement_goes_before_what_is_staged_after_it),
        ENDS_TEST(test_announcements_wait_for_credit_and_data_waits_for_them),
        ENDS_TEST(test_withdrawing_is_a_handshake),
        ENDS_TEST(test_who_does_not_wait_is_not_told),
        ENDS_TEST(test_what_the_peer_never_heard_of_is_withdrawn_at_once),
        ENDS_TEST(test_a_map_that_was_forgotten_keeps_its_offsets_until_the_answer),
        ENDS_TEST(test_undo_of_each_message),
        ENDS_TEST(test_undo_of_an_announcement_that_was_withdrawn_meanwhile),
        ENDS_TEST(test_rules_about_maps),
        ENDS_TEST(test_more_maps_than_were_offered),
        cmocka_unit_test(test_maps_where_none_were_agreed_on),
        ENDS_TEST(test_maps_are_control_messages_that_count),
        ENDS_TEST(test_a_map_behind_the_reset_of_the_stream),
        ENDS_TEST(test_a_message_as_it_came),
    };
    return RUN_TAP(tests);
}
