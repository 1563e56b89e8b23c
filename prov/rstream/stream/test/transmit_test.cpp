// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The sending half of a stream: which work requests the core gets for what the program sends, what is kept when the
// core has no space, and how the stream ends.
#include "prov/rstream/stream/transmit.hpp"

#include <algorithm>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include <unistd.h>

#include "include/rdma/fi_ext_rstream.h"
#include "prov/rstream/stream/test/transmit_scene.hpp"

using namespace rstream;
using Kind = FakeCore::Kind;
using End = Transmit::End;

namespace {

constexpr size_t inject_size = 64;

int set_up(void** state) { return make_scene(state, {}); }
int set_up_inject(void** state) { return make_scene(state, {.inject_size = inject_size}); }
int set_up_headers(void** state) { return make_scene(state, {.headers = true}); }
int set_up_headers_inject(void** state) { return make_scene(state, {.inject_size = inject_size, .headers = true}); }
int set_up_unconnected(void** state) { return make_scene(state, {}, 0, false); }
int set_up_ordered(void** state) {
    CoreProperties properties;
    properties.ordered_writes = true;
    return make_scene(state, {.properties = properties});
}

// ---- what a send becomes

void test_a_send_is_a_write_to_the_peers_ring(void** state) {
    TransmitScene& scene = scene_of(state);
    assert_int_equal(scene.send("hello"), 5);
    assert_int_equal(scene.core.operations.size(), 1);
    const auto& write = scene.core.last();
    assert_true(write.kind == Kind::write);
    assert_string_equal(write.bytes.c_str(), "hello");
    assert_int_equal(write.address, PartsScene::ring_address);
    assert_int_equal(write.key, PartsScene::ring_key);
    assert_int_equal(wire::Immediate::decode(write.data)->length, 5);
    assert_int_equal(write.flags, FI_REMOTE_CQ_DATA | FI_COMPLETION);
    assert_false(scene.needs);
    assert_int_equal(scene.send("again"), 5);
    assert_int_equal(scene.core.last().address, PartsScene::ring_address + 5);
}

void test_an_empty_send_is_nothing(void** state) {
    assert_int_equal(scene_of(state).send(""), 0);
    assert_int_equal(scene_of(state).core.operations.size(), 0);
}

void test_a_list_of_buffers_is_sent_together(void** state) {
    TransmitScene& scene = scene_of(state);
    std::string one = "one ";
    std::string two = "two";
    const iovec iov[] = {{one.data(), one.size()}, {two.data(), two.size()}};
    const ssize_t sent = scene.transmit.send(iov, 2, false, scene.left);
    assert_int_equal(sent, 7);
    assert_int_equal(scene.core.operations.size(), 1);
    assert_string_equal(scene.core.last().bytes.c_str(), "one two");
}

void test_a_long_send_is_several_chunks(void** state) {
    TransmitScene& scene = scene_of(state);
    assert_int_equal(scene.send(chunk + 100), chunk + 100);
    assert_int_equal(scene.core.operations.size(), 2);
    assert_int_equal(scene.core.operations[0].bytes.size(), chunk);
    assert_int_equal(scene.core.operations[1].bytes.size(), 100);
}

void test_more_to_come_holds_bytes_back(void** state) {
    TransmitScene& scene = scene_of(state);
    assert_int_equal(scene.send("first, ", true), 7);
    assert_int_equal(scene.core.operations.size(), 0);
    assert_true(scene.transmit.flush_wanted());
    assert_int_equal(scene.send("second"), 6);
    assert_int_equal(scene.core.operations.size(), 1);
    assert_string_equal(scene.core.last().bytes.c_str(), "first, second");
    assert_false(scene.transmit.flush_wanted());
}

void test_small_sends_are_injected_where_the_core_can(void** state) {
    TransmitScene& scene = scene_of(state);
    assert_int_equal(scene.send("small"), 5);
    assert_true(scene.core.last().kind == Kind::inject_write);
    assert_int_equal(wire::Immediate::decode(scene.core.last().data)->length, 5);
    assert_int_equal(scene.link.space(), PartsScene::staging_size); // none of it was staged
    assert_int_equal(scene.send(inject_size + 1), inject_size + 1);
    assert_true(scene.core.last().kind == Kind::write);
}

// An inject has no completion, and takes a place in the core's queue.
void test_of_injected_sends_one_in_half_a_queue_asks_for_a_completion(void** state) {
    TransmitScene& scene = scene_of(state);
    for (size_t i = 0; i < queue_size / 2; ++i) {
        assert_int_equal(scene.send("x"), 1);
    }
    assert_int_equal(scene.core.count(Kind::inject_write), queue_size / 2 - 1);
    assert_true(scene.core.last().kind == Kind::write);
    assert_true((scene.core.last().flags & FI_COMPLETION) != 0);
    assert_false(scene.transmit.all_completed());
    scene.complete_all();
    assert_true(scene.transmit.all_completed());
}

// ---- what cannot go yet

void test_what_the_core_has_no_room_for_is_kept_in_order(void** state) {
    TransmitScene& scene = scene_of(state);
    scene.core.refusal = -FI_EAGAIN;
    assert_int_equal(scene.send("one "), 4);
    assert_int_equal(scene.send("two"), 3);
    assert_int_equal(scene.core.operations.size(), 0);
    assert_true(scene.needs);
    assert_true(scene.transmit.waits_for_calls());
    scene.core.refusal = 0;
    scene.transmit.request_flush();
    assert_int_equal(scene.core.operations.size(), 1);
    assert_string_equal(scene.core.last().bytes.c_str(), "one two");
    assert_false(scene.needs);
    assert_int_equal(scene.post_error, 0);
}

// The program's bytes are kept, so the call must not fail; that they need progress is to be reported all the same.
void test_a_need_for_progress_without_memory_is_reported_by_the_next_call(void** state) {
    TransmitScene& scene = scene_of(state);
    scene.core.refusal = -FI_EAGAIN;
    scene.no_memory = true;
    bool thrown = false;
    ssize_t sent = 0;
    try {
        sent = scene.send("one ");
    } catch (const std::bad_alloc&) {
        thrown = true;
    }
    assert_false(thrown);
    assert_int_equal(sent, 4);
    assert_false(scene.no_memory);
    assert_false(scene.needs);
    assert_int_equal(scene.send("two"), 3);
    assert_true(scene.needs);
    scene.core.refusal = 0;
    scene.transmit.request_flush();
    assert_string_equal(scene.core.last().bytes.c_str(), "one two");
    assert_false(scene.needs);
}

void test_an_inject_that_is_refused_is_staged(void** state) {
    TransmitScene& scene = scene_of(state);
    scene.core.refusal = -FI_EAGAIN;
    scene.core.refused = Kind::inject_write;
    assert_int_equal(scene.send("small"), 5);
    assert_int_equal(scene.core.operations.size(), 1);
    assert_true(scene.core.last().kind == Kind::write);
    assert_string_equal(scene.core.last().bytes.c_str(), "small");
    assert_int_equal(scene.core.last().address, PartsScene::ring_address);
}

void test_a_full_staging_ring_blocks_until_a_completion(void** state) {
    TransmitScene& scene = scene_of(state);
    assert_int_equal(scene.send(PartsScene::staging_size + 1), PartsScene::staging_size);
    assert_int_equal(scene.send("x"), -FI_EAGAIN);
    scene.transmit.complete(scene.core.operations[0].context);
    assert_int_equal(scene.send(PartsScene::staging_size), chunk);
}

void test_a_completion_of_something_else_frees_nothing(void** state) {
    TransmitScene& scene = scene_of(state);
    assert_int_equal(scene.send(PartsScene::staging_size), PartsScene::staging_size);
    scene.transmit.complete(&scene);
    assert_int_equal(scene.send("x"), -FI_EAGAIN);
}

void test_what_the_core_fails_with_is_reported(void** state) {
    TransmitScene& scene = scene_of(state);
    scene.core.refusal = -FI_EIO;
    assert_int_equal(scene.send("x"), 1);
    assert_int_equal(scene.post_error, FI_EIO);
}

void test_many_bytes_that_are_held_back_ask_for_a_poll(void** state) {
    constexpr size_t quantum = PartsScene::staging_size / 4;
    constexpr int tries = 100; // both sends must be within a tick
    bool polled = false;
    bool in_a_tick = false;
    for (int i = 0; i < tries && !in_a_tick; ++i) {
        timespec before{};
        timespec after{};
        tear_down_scene(state);
        assert_int_equal(set_up(state), 0);
        TransmitScene& fresh = scene_of(state);
        fresh.core.refusal = -FI_EAGAIN;
        clock_gettime(CLOCK_MONOTONIC_COARSE, &before);
        assert_int_equal(fresh.send("x"), 1); // polls, as the first one
        fresh.left.poll = false;
        assert_int_equal(fresh.send(quantum), quantum);
        clock_gettime(CLOCK_MONOTONIC_COARSE, &after);
        polled = fresh.left.poll;
        in_a_tick = before.tv_sec == after.tv_sec && before.tv_nsec == after.tv_nsec;
    }
    assert_true(in_a_tick);
    assert_true(polled);
}

void test_few_bytes_ask_for_a_poll_once_the_clock_has_ticked(void** state) {
    TransmitScene& scene = scene_of(state);
    scene.core.refusal = -FI_EAGAIN;
    constexpr useconds_t several_ticks = 50000;
    for (int i = 0; i < 3; ++i) {
        usleep(several_ticks);
        assert_int_equal(scene.send("x"), 1);
        assert_true(scene.left.poll);
    }
    int polls = 0;
    for (int i = 0; i < 1000; ++i) { // less than a tick, unless this thread is kept from running
        assert_int_equal(scene.send("x"), 1);
        polls += scene.left.poll ? 1 : 0;
    }
    assert_in_range(polls, 0, 500);
}

void test_bytes_that_are_sent_ask_for_no_poll(void** state) {
    TransmitScene& scene = scene_of(state);
    assert_int_equal(scene.send("x"), 1);
    assert_false(scene.left.poll);
}

// The program has read what the peer sent, and the peer is to be told.
void owe_credit(TransmitScene& scene) {
    assert_null(scene.link.on_data(wire::Immediate{100, 0, true}.encode()));
    scene.link.consume(100);
}

void test_a_credit_that_is_due_is_posted(void** state) {
    TransmitScene& scene = scene_of(state);
    scene.transmit.request_flush();
    assert_int_equal(scene.core.operations.size(), 0);
    owe_credit(scene);
    scene.transmit.request_flush();
    assert_int_equal(scene.core.operations.size(), 1);
    const auto credit = control_of(scene.core.last());
    assert_true(credit.has_value());
    assert_true(credit->type == wire::Control::Type::credit);
    assert_int_equal(credit->consumed, 100);
}

// ---- a core without immediates

void test_a_header_follows_each_chunk(void** state) {
    TransmitScene& scene = scene_of(state);
    assert_int_equal(scene.send("hello"), 5);
    assert_int_equal(scene.core.operations.size(), 2);
    assert_true(scene.core.operations[0].kind == Kind::write);
    assert_true((scene.core.operations[0].flags & FI_REMOTE_CQ_DATA) == 0);
    const auto header = control_of(scene.core.operations[1]);
    assert_true(header.has_value());
    assert_true(header->type == wire::Control::Type::data);
    assert_int_equal(wire::Immediate::decode(header->argument)->length, 5);
}

void test_nothing_comes_between_a_chunk_and_its_header(void** state) {
    TransmitScene& scene = scene_of(state);
    scene.core.refusal = -FI_EAGAIN;
    scene.core.refused = Kind::send;
    assert_int_equal(scene.send("one"), 3);
    assert_int_equal(scene.core.operations.size(), 1);
    assert_true(scene.needs);
    assert_int_equal(scene.send("two"), 3);
    assert_int_equal(scene.core.operations.size(), 1);
    scene.core.refusal = 0;
    scene.transmit.request_flush();
    assert_int_equal(scene.core.operations.size(), 4);
    assert_int_equal(wire::Immediate::decode(control_of(scene.core.operations[1])->argument)->length, 3);
    assert_string_equal(scene.core.operations[2].bytes.c_str(), "two");
    assert_false(scene.needs);
}

// ---- the end

void test_the_end_follows_the_data(void** state) {
    TransmitScene& scene = scene_of(state);
    scene.core.refusal = -FI_EAGAIN;
    assert_int_equal(scene.send("last"), 4);
    scene.transmit.end(End::finish);
    scene.core.refusal = 0;
    scene.transmit.request_flush();
    assert_int_equal(scene.core.operations.size(), 2);
    assert_string_equal(scene.core.operations[0].bytes.c_str(), "last");
    const auto fin = control_of(scene.core.operations[1]);
    assert_true(fin->type == wire::Control::Type::fin);
    assert_int_equal(fin->flags, 0);
    assert_true((scene.core.last().flags & FI_COMPLETION) != 0);
    assert_int_equal(scene.send("x"), -FI_EPIPE);
    assert_false(scene.transmit.all_completed());
    scene.complete_all();
    assert_true(scene.transmit.all_completed());
}

void test_closing_says_so(void** state) {
    scene_of(state).transmit.end(End::close);
    assert_true(control_of(scene_of(state).core.last())->type == wire::Control::Type::fin);
    assert_int_equal(control_of(scene_of(state).core.last())->flags, wire::Control::flag_closed);
}

void test_closing_with_bytes_unread_resets_behind_the_data(void** state) {
    TransmitScene& scene = scene_of(state);
    assert_int_equal(scene.send("last", true), 4);
    scene.transmit.end(End::close_unread);
    assert_int_equal(scene.core.operations.size(), 2);
    assert_string_equal(scene.core.operations[0].bytes.c_str(), "last");
    assert_true(control_of(scene.core.last())->type == wire::Control::Type::rst);
}

void test_an_abort_drops_what_was_not_posted(void** state) {
    TransmitScene& scene = scene_of(state);
    assert_int_equal(scene.send("dropped", true), 7);
    scene.transmit.end(End::abort);
    assert_int_equal(scene.core.operations.size(), 1);
    assert_true(control_of(scene.core.last())->type == wire::Control::Type::rst);
}

void test_nothing_is_sent_before_the_connection(void** state) {
    TransmitScene& scene = scene_of(state);
    assert_int_equal(scene.send("x"), -FI_ENOTCONN);
    owe_credit(scene);
    scene.transmit.request_flush();
    assert_int_equal(scene.core.operations.size(), 0);
    scene.connect();
    scene.transmit.request_flush();
    assert_int_equal(scene.core.operations.size(), 1);
    assert_int_equal(scene.send("x"), 1);
}

void test_the_loss_of_a_connection_is_reported_once(void** state) {
    TransmitScene& scene = scene_of(state);
    assert_int_equal(scene.transmit.error(), 0);
    scene.lifecycle.fail(FI_ETIMEDOUT);
    assert_int_equal(scene.send("x"), -FI_ETIMEDOUT);
    assert_int_equal(scene.send("x"), -FI_EPIPE);
    owe_credit(scene);
    scene.transmit.request_flush();
    assert_int_equal(scene.core.operations.size(), 0);
}

// ---- the peer's memory

constexpr uint64_t map_address = 0x20000000;
void map(TransmitScene& scene) {
    assert_null(scene.link.on_map({wire::MapMessage::Type::map, 1000, 65536, map_address, 5}));
}

void test_memory_that_is_not_mapped_cannot_be_written(void** state) {
    TransmitScene& scene = scene_of(state);
    assert_int_equal(scene.write(10, 1000), -FI_EINVAL);
    map(scene);
    assert_int_equal(scene.write(10, 999), -FI_EINVAL);
    assert_int_equal(scene.write(10, 1000 + 65536 - 9), -FI_EINVAL);
    assert_int_equal(scene.transmit.write(nullptr, nullptr, 10, 1000, false, scene.left), -FI_EINVAL);
    assert_int_equal(scene.core.count(Kind::write), 0);
}

void test_a_write_to_a_map_carries_no_immediate(void** state) {
    TransmitScene& scene = scene_of(state);
    map(scene);
    assert_int_equal(scene.write(100, 1010), 100);
    assert_int_equal(scene.core.count(Kind::write), 1);
    assert_int_equal(scene.core.last().bytes.size(), 100);
    assert_int_equal(scene.core.last().address, map_address + 10);
    assert_int_equal(scene.core.last().key, 5);
    assert_true((scene.core.last().flags & FI_REMOTE_CQ_DATA) == 0);
}

void test_writes_to_a_map_that_are_held_back_ask_for_a_poll(void** state) {
    TransmitScene& scene = scene_of(state);
    map(scene);
    assert_int_equal(scene.write(100, 1000), 100);
    assert_false(scene.left.poll);
    scene.core.refusal = -FI_EAGAIN;
    assert_int_equal(scene.write(100, 1000), 100);
    assert_true(scene.left.poll);
}

void test_on_a_core_without_order_the_last_bytes_go_alone(void** state) {
    TransmitScene& scene = scene_of(state);
    map(scene);
    assert_int_equal(scene.write(100, 1000), 100);
    assert_int_equal(scene.core.count(Kind::write), 2);
    const auto& operations = scene.core.operations;
    assert_int_equal(operations[operations.size() - 2].bytes.size(), 92);
    assert_int_equal(operations.back().bytes.size(), 8);
    assert_int_equal(operations.back().address, map_address + 92);
}

void test_a_write_to_a_map_does_not_pass_a_header_that_waits(void** state) {
    TransmitScene& scene = scene_of(state);
    map(scene);
    scene.core.refusal = -FI_EAGAIN;
    scene.core.refused = Kind::inject; // as headers are sent here
    assert_int_equal(scene.send("one"), 3);
    assert_int_equal(scene.write(4, 1000), 4);
    assert_int_equal(scene.core.operations.size(), 1);
    scene.core.refusal = 0;
    scene.transmit.request_flush();
    assert_int_equal(scene.core.operations.size(), 3);
    assert_true(scene.core.operations[1].kind == Kind::inject);
    assert_int_equal(scene.core.operations[2].address, map_address);
}

} // namespace

int main() {
#define test(name, set_up) cmocka_unit_test_setup_teardown(name, set_up, tear_down_scene)
    const CMUnitTest tests[] = {
        test(test_a_send_is_a_write_to_the_peers_ring, set_up),
        test(test_an_empty_send_is_nothing, set_up),
        test(test_a_list_of_buffers_is_sent_together, set_up),
        test(test_a_long_send_is_several_chunks, set_up),
        test(test_more_to_come_holds_bytes_back, set_up),
        test(test_small_sends_are_injected_where_the_core_can, set_up_inject),
        test(test_of_injected_sends_one_in_half_a_queue_asks_for_a_completion, set_up_inject),
        test(test_what_the_core_has_no_room_for_is_kept_in_order, set_up),
        test(test_a_need_for_progress_without_memory_is_reported_by_the_next_call, set_up),
        test(test_an_inject_that_is_refused_is_staged, set_up_inject),
        test(test_a_full_staging_ring_blocks_until_a_completion, set_up),
        test(test_a_completion_of_something_else_frees_nothing, set_up),
        test(test_what_the_core_fails_with_is_reported, set_up),
        test(test_many_bytes_that_are_held_back_ask_for_a_poll, set_up),
        test(test_few_bytes_ask_for_a_poll_once_the_clock_has_ticked, set_up),
        test(test_writes_to_a_map_that_are_held_back_ask_for_a_poll, set_up_ordered),
        test(test_bytes_that_are_sent_ask_for_no_poll, set_up),
        test(test_a_credit_that_is_due_is_posted, set_up),
        test(test_a_header_follows_each_chunk, set_up_headers),
        test(test_nothing_comes_between_a_chunk_and_its_header, set_up_headers),
        test(test_the_end_follows_the_data, set_up),
        test(test_closing_says_so, set_up),
        test(test_closing_with_bytes_unread_resets_behind_the_data, set_up),
        test(test_an_abort_drops_what_was_not_posted, set_up),
        test(test_nothing_is_sent_before_the_connection, set_up_unconnected),
        test(test_the_loss_of_a_connection_is_reported_once, set_up),
        test(test_memory_that_is_not_mapped_cannot_be_written, set_up_ordered),
        test(test_a_write_to_a_map_carries_no_immediate, set_up_ordered),
        test(test_on_a_core_without_order_the_last_bytes_go_alone, set_up),
        test(test_a_write_to_a_map_does_not_pass_a_header_that_waits, set_up_headers_inject),
    };
    return RUN_TAP(tests);
}
