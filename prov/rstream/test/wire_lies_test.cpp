// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A peer that lies. Each rule that it can break is found out, with the words that go to the log.
#include "prov/rstream/test/wire_test.hpp"

using namespace rstream::wire;

namespace {

void test_an_immediate_of_no_known_form_is_found_out(void**) {
    Pair pair;
    assert_string_equal(rule(pair.a.on_data(0)), "an immediate of no known form");
    assert_string_equal(rule(pair.a.on_data(immediate(1) | 1ULL << 40)), "an immediate of no known form");
    Pair headers(Mode::headers);
    assert_string_equal(rule(headers.a.on_control(report(0, 0, 0, Control::Type::data))),
                        "an immediate of no known form");
}

void test_data_beyond_the_ring_is_found_out(void**) {
    Pair pair(Mode::immediates, 4096);
    assert_string_equal(rule(pair.a.on_data(immediate(4097))), "data beyond the receive ring");
    assert_string_equal(rule(pair.a.on_data(immediate(Immediate::max_length))), "data beyond the receive ring");
    assert_string_equal(rule(pair.a.on_data(immediate(4096))), fine);
    assert_string_equal(rule(pair.a.on_data(immediate(1))), "data beyond the receive ring");
    assert_int_equal(pair.a.readable(), 4096);
}

void test_too_many_data_messages_are_found_out(void**) {
    Pair pair(Mode::immediates, 65536, 4);
    for (int i = 0; i < 4; ++i) {
        assert_string_equal(rule(pair.a.on_data(immediate(1))), fine);
    }
    assert_string_equal(rule(pair.a.on_data(immediate(1))), "more data messages than credits");
}

void test_credit_for_what_was_not_sent_is_found_out(void**) {
    constexpr uint64_t most = ~uint64_t{0};
    for (const auto& lie : {report(101, 1, 0), report(100, 2, 0), report(most, 1, 0), report(1, most, 0)}) {
        Pair pair;
        pair.a.stage(100);
        pair.a.next();
        assert_string_equal(rule(pair.a.on_control(lie)), "credit for what was not sent");
    }
}

void test_acknowledging_data_that_was_not_sent_is_found_out(void**) {
    Pair pair;
    pair.a.stage(100);
    pair.a.next();
    assert_string_equal(rule(pair.a.on_data(Immediate{1, 0, false, 1}.encode())), fine);
    assert_string_equal(rule(pair.a.on_data(Immediate{1, 0, false, 1}.encode())),
                        "acknowledges data that was not sent");
}

void test_acknowledging_data_that_the_core_did_not_take_is_found_out(void**) {
    Pair pair;
    pair.a.stage(100);
    const auto post = pair.a.next();
    assert_string_equal(rule(pair.a.on_data(Immediate{1, 0, false, 1}.encode())), fine); // a guess
    pair.a.undo(*post);
    assert_string_equal(rule(pair.a.on_data(Immediate{1, 0, false, 1}.encode())),
                        "acknowledges data that was not sent");
}

void test_counters_that_go_back_are_found_out(void**) {
    for (const auto& lie : {report(99, 1, 0), report(100, 0, 0)}) {
        Pair pair;
        pair.a.stage(100);
        pair.a.next();
        assert_string_equal(rule(pair.a.on_control(report(100, 1, 0))), fine);
        assert_string_equal(rule(pair.a.on_control(lie)), "credit for what was not sent");
    }
}

void test_acknowledging_control_that_was_not_sent_is_found_out(void**) {
    Pair pair;
    const char* lie = "acknowledges control messages that were not sent";
    assert_string_equal(rule(pair.a.on_data(immediate(1, 1))), lie);
    assert_string_equal(rule(pair.a.on_control(report(0, 0, 1))), lie);
    assert_string_equal(rule(pair.a.on_control(report(0, 0, ~uint64_t{0}))), lie);
    pair.a.finish(false);
    pair.a.next();
    assert_string_equal(rule(pair.a.on_control(report(0, 0, 1))), fine);
    assert_string_equal(rule(pair.a.on_control(report(0, 0, 0))), lie); // goes back
}

void test_a_control_flood_is_found_out(void**) {
    Pair pair;
    for (int i = 0; i < control_credits; ++i) {
        assert_string_equal(rule(pair.a.on_control(report(0, 0, 0))), fine);
    }
    assert_string_equal(rule(pair.a.on_control(report(0, 0, 0))), "more control messages than credits");
}

// Each message lies in memory of ours until the core is done with it, and there is space for so many.
void test_more_control_credits_than_there_is_room_for_are_not_used(void**) {
    Hello boastful = peer_hello();
    boastful.control_credits = 255;
    Link link({8192, 65536, 384});
    link.open(boastful, false, 65536);
    int sent = 0;
    for (int i = 0; i < 64; ++i) {
        assert_string_equal(rule(link.on_data(Immediate{1, 0, true}.encode())), fine);
        while (const auto post = link.next()) {
            assert_true(post->kind == Post::Kind::control);
            ++sent;
        }
    }
    assert_int_equal(sent, control_credits - 1); // the last is for who acknowledges
    for (int i = 0; i < control_credits / 2; ++i) {
        assert_string_equal(rule(link.on_control(report(0, 0, 0))), fine);
    }
    while (link.next()) {
        ++sent;
    }
    assert_int_equal(sent, control_credits);
    assert_false(link.control_due());
    assert_string_equal(rule(link.on_control(report(0, 0, 4))), fine);
    assert_string_equal(rule(link.on_data(Immediate{1, 0, true}.encode())), fine);
    assert_true(link.next().has_value()); // they come back
}

// Maps own memory: no assert here.
int announced_without_an_answer(const Hello& peer) {
    constexpr int count = 100;
    Maps maps(0, count);
    Link link({8192, 65536, 384});
    link.open(peer, false, 65536, &maps);
    for (int i = 0; i < count; ++i) {
        uint64_t offset = Maps::any;
        if (maps.claim(offset, 10) != Maps::Claim::made) {
            return -1;
        }
        maps.announce(offset, 0, 7);
    }
    int sent = 0;
    while (const auto post = link.next()) {
        sent += post->kind == Post::Kind::map ? 1 : 0;
    }
    return sent;
}

void test_announcements_use_no_more_control_credits_either(void**) {
    Hello boastful = peer_hello();
    boastful.control_credits = 255;
    assert_int_equal(announced_without_an_answer(boastful), control_credits - 1);
    Hello modest = peer_hello();
    modest.control_credits = 5;
    assert_int_equal(announced_without_an_answer(modest), 4);
}

void test_headers_use_no_control_credits(void**) {
    Pair pair(Mode::headers);
    Control header = report(0, 0, 0, Control::Type::data);
    header.argument = static_cast<uint32_t>(immediate(1));
    for (int i = 0; i < 384; ++i) {
        assert_string_equal(rule(pair.a.on_control(header)), fine);
    }
    assert_string_equal(rule(pair.a.on_control(header)), "more data messages than credits");
}

void test_a_header_where_immediates_were_agreed_on_is_found_out(void**) {
    Pair pair;
    Control header = report(0, 0, 0, Control::Type::data);
    header.argument = static_cast<uint32_t>(immediate(1));
    assert_string_equal(rule(pair.a.on_control(header)), "a data header where immediates were agreed on");
    assert_int_equal(pair.a.readable(), 0);
}

void test_data_behind_the_end_is_found_out(void**) {
    for (const auto end : {Control::Type::fin, Control::Type::rst}) {
        Pair pair;
        pair.a.on_control(report(0, 0, 0, end));
        assert_string_equal(rule(pair.a.on_data(immediate(1))), "data behind the end of the stream");
        assert_int_equal(pair.a.readable(), 0);
    }
}

void test_control_behind_a_reset_is_found_out(void**) {
    for (const auto type : {Control::Type::credit, Control::Type::fin, Control::Type::rst}) {
        Pair pair;
        pair.a.on_control(report(0, 0, 0, Control::Type::rst));
        assert_string_equal(rule(pair.a.on_control(report(0, 0, 0, type))),
                            "a control message behind the end of the stream");
    }
}

void test_a_second_fin_may_only_close(void**) {
    const Control fin = report(0, 0, 0, Control::Type::fin);
    const Control closed = report(0, 0, 0, Control::Type::fin, Control::flag_closed);
    const char* behind = "a control message behind the end of the stream";
    Pair pair;
    assert_string_equal(rule(pair.a.on_control(fin)), fine);
    assert_string_equal(rule(pair.a.on_control(fin)), behind);
    assert_string_equal(rule(pair.a.on_control(closed)), fine);
    assert_string_equal(rule(pair.a.on_control(closed)), behind);
    assert_string_equal(rule(pair.a.on_control(fin)), behind);
    assert_true(pair.a.peer_finished() && pair.a.peer_closed());
    assert_string_equal(rule(pair.a.on_control(report(0, 0, 0))), fine); // its credits still count
    assert_string_equal(rule(pair.a.on_control(report(0, 0, 0, Control::Type::rst))), fine);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_an_immediate_of_no_known_form_is_found_out),
        cmocka_unit_test(test_data_beyond_the_ring_is_found_out),
        cmocka_unit_test(test_too_many_data_messages_are_found_out),
        cmocka_unit_test(test_credit_for_what_was_not_sent_is_found_out),
        cmocka_unit_test(test_acknowledging_data_that_was_not_sent_is_found_out),
        cmocka_unit_test(test_acknowledging_data_that_the_core_did_not_take_is_found_out),
        cmocka_unit_test(test_counters_that_go_back_are_found_out),
        cmocka_unit_test(test_acknowledging_control_that_was_not_sent_is_found_out),
        cmocka_unit_test(test_a_control_flood_is_found_out),
        cmocka_unit_test(test_more_control_credits_than_there_is_room_for_are_not_used),
        cmocka_unit_test(test_announcements_use_no_more_control_credits_either),
        cmocka_unit_test(test_headers_use_no_control_credits),
        cmocka_unit_test(test_a_header_where_immediates_were_agreed_on_is_found_out),
        cmocka_unit_test(test_data_behind_the_end_is_found_out),
        cmocka_unit_test(test_control_behind_a_reset_is_found_out),
        cmocka_unit_test(test_a_second_fin_may_only_close),
    };
    return RUN_TAP(tests);
}
