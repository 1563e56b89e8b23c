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
#include "prov/rstream/stream/test/parts_scene.hpp"

using namespace rstream;
using Kind = FakeCore::Kind;
using End = Transmit::End;

namespace {

constexpr size_t queue_size = 16;
constexpr size_t chunk = PartsScene::staging_size / 2; // two writes at once
constexpr size_t inject_size = 64;

struct Scene final : PartsScene, Transmit::Events {
    explicit Scene(const Config& config, size_t staging_limit = 0)
        : PartsScene(config),
          transmit({core.endpoint(), link, messages, lifecycle, readiness, keepalive}, staging_limit, *this),
          maps(4, 4) {
        ready = ready && transmit.open(staging_size, queue_size) == 0;
        open_link(config.headers, &maps);
        transmit.start();
    }
    virtual ~Scene() = default;
    void on_needs_progress(bool wanted) override {
        if (std::exchange(no_memory, false)) {
            throw std::bad_alloc();
        }
        needs = wanted;
    }
    void on_post_error(int failure) override { post_error = failure; }

    ssize_t send(const std::string& bytes, bool more = false) {
        const iovec iov{const_cast<char*>(bytes.data()), bytes.size()};
        return transmit.send(&iov, 1, more, left);
    }
    ssize_t send(size_t length) { return send(std::string(length, 'x')); }
    ssize_t write(size_t length, uint64_t offset) {
        const std::string bytes(length, 'w');
        return transmit.write(&maps, reinterpret_cast<const std::byte*>(bytes.data()), length, offset, false, left);
    }
    // The core is done with all that it was given.
    void complete_all() {
        for (; completed < core.operations.size(); ++completed) {
            if ((core.operations[completed].flags & FI_COMPLETION) != 0) {
                transmit.complete(core.operations[completed].context);
            }
        }
    }
    // The peer has read all, and returns the credit.
    void acknowledge_all() {
        sent_before += count_bytes();
        const char* found = link.on_control(wire::report(sent_before, messages_sent(), controls_sent()));
        broken = broken != nullptr ? broken : found;
    }
    [[nodiscard]] size_t count_bytes() {
        size_t bytes = 0;
        for (; counted < core.operations.size(); ++counted) {
            const auto& operation = core.operations[counted];
            bytes += operation.kind == Kind::write || operation.kind == Kind::inject_write ? operation.bytes.size() : 0;
        }
        return bytes;
    }
    [[nodiscard]] uint64_t messages_sent() const { return core.count(Kind::write) + core.count(Kind::inject_write); }
    [[nodiscard]] uint64_t controls_sent() const { return core.count(Kind::send) + core.count(Kind::inject); }

    Transmit transmit;
    wire::Maps maps;
    Transmit::Leftover left;
    bool needs = false;
    bool no_memory = false; // the next report of `needs` throws
    int post_error = 0;
    size_t completed = 0;
    size_t counted = 0;
    uint64_t sent_before = 0;
    const char* broken = nullptr; // a rule, by the test itself
};

int make(void** state, const PartsScene::Config& config, size_t staging_limit = 0, bool connected = true) {
    auto scene = std::make_unique<Scene>(config, staging_limit);
    if (connected) {
        scene->connect();
    }
    const bool ready = scene->ready;
    *state = scene.release();
    return ready ? 0 : -1;
}

int set_up(void** state) { return make(state, {}); }
int set_up_inject(void** state) { return make(state, {.inject_size = inject_size}); }
int set_up_headers(void** state) { return make(state, {.headers = true}); }
int set_up_headers_inject(void** state) { return make(state, {.inject_size = inject_size, .headers = true}); }
int set_up_growing(void** state) { return make(state, {}, 4 * PartsScene::staging_size); }
int set_up_unconnected(void** state) { return make(state, {}, 0, false); }
int set_up_ordered(void** state) {
    CoreProperties properties;
    properties.ordered_writes = true;
    return make(state, {.properties = properties});
}

int tear_down(void** state) {
    const std::unique_ptr<Scene> scene(static_cast<Scene*>(*state));
    return 0;
}

Scene& of(void** state) { return *static_cast<Scene*>(*state); }

// ---- what a send becomes

void test_a_send_is_a_write_to_the_peers_ring(void** state) {
    Scene& scene = of(state);
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
    assert_int_equal(of(state).send(""), 0);
    assert_int_equal(of(state).core.operations.size(), 0);
}

void test_a_list_of_buffers_is_sent_together(void** state) {
    Scene& scene = of(state);
    std::string one = "one ";
    std::string two = "two";
    const iovec iov[] = {{one.data(), one.size()}, {two.data(), two.size()}};
    const ssize_t sent = scene.transmit.send(iov, 2, false, scene.left);
    assert_int_equal(sent, 7);
    assert_int_equal(scene.core.operations.size(), 1);
    assert_string_equal(scene.core.last().bytes.c_str(), "one two");
}

void test_a_long_send_is_several_chunks(void** state) {
    Scene& scene = of(state);
    assert_int_equal(scene.send(chunk + 100), chunk + 100);
    assert_int_equal(scene.core.operations.size(), 2);
    assert_int_equal(scene.core.operations[0].bytes.size(), chunk);
    assert_int_equal(scene.core.operations[1].bytes.size(), 100);
}

void test_more_to_come_holds_bytes_back(void** state) {
    Scene& scene = of(state);
    assert_int_equal(scene.send("first, ", true), 7);
    assert_int_equal(scene.core.operations.size(), 0);
    assert_true(scene.transmit.flush_wanted());
    assert_int_equal(scene.send("second"), 6);
    assert_int_equal(scene.core.operations.size(), 1);
    assert_string_equal(scene.core.last().bytes.c_str(), "first, second");
    assert_false(scene.transmit.flush_wanted());
}

void test_small_sends_are_injected_where_the_core_can(void** state) {
    Scene& scene = of(state);
    assert_int_equal(scene.send("small"), 5);
    assert_true(scene.core.last().kind == Kind::inject_write);
    assert_int_equal(wire::Immediate::decode(scene.core.last().data)->length, 5);
    assert_int_equal(scene.link.space(), PartsScene::staging_size); // none of it was staged
    assert_int_equal(scene.send(inject_size + 1), inject_size + 1);
    assert_true(scene.core.last().kind == Kind::write);
}

// An inject has no completion, and takes a place in the core's queue.
void test_of_injected_sends_one_in_half_a_queue_asks_for_a_completion(void** state) {
    Scene& scene = of(state);
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
    Scene& scene = of(state);
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
    Scene& scene = of(state);
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
    Scene& scene = of(state);
    scene.core.refusal = -FI_EAGAIN;
    scene.core.refused = Kind::inject_write;
    assert_int_equal(scene.send("small"), 5);
    assert_int_equal(scene.core.operations.size(), 1);
    assert_true(scene.core.last().kind == Kind::write);
    assert_string_equal(scene.core.last().bytes.c_str(), "small");
    assert_int_equal(scene.core.last().address, PartsScene::ring_address);
}

void test_a_full_staging_ring_blocks_until_a_completion(void** state) {
    Scene& scene = of(state);
    assert_int_equal(scene.send(PartsScene::staging_size + 1), PartsScene::staging_size);
    assert_int_equal(scene.send("x"), -FI_EAGAIN);
    scene.transmit.complete(scene.core.operations[0].context);
    assert_int_equal(scene.send(PartsScene::staging_size), chunk);
}

void test_a_completion_of_something_else_frees_nothing(void** state) {
    Scene& scene = of(state);
    assert_int_equal(scene.send(PartsScene::staging_size), PartsScene::staging_size);
    scene.transmit.complete(&scene);
    assert_int_equal(scene.send("x"), -FI_EAGAIN);
}

void test_what_the_core_fails_with_is_reported(void** state) {
    Scene& scene = of(state);
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
        tear_down(state);
        assert_int_equal(set_up(state), 0);
        Scene& fresh = of(state);
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
    Scene& scene = of(state);
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
    Scene& scene = of(state);
    assert_int_equal(scene.send("x"), 1);
    assert_false(scene.left.poll);
}

// The program has read what the peer sent, and the peer is to be told.
void owe_credit(Scene& scene) {
    assert_null(scene.link.on_data(wire::Immediate{100, 0, true}.encode()));
    scene.link.consume(100);
}

void test_a_credit_that_is_due_is_posted(void** state) {
    Scene& scene = of(state);
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
    Scene& scene = of(state);
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
    Scene& scene = of(state);
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
    Scene& scene = of(state);
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
    of(state).transmit.end(End::close);
    assert_true(control_of(of(state).core.last())->type == wire::Control::Type::fin);
    assert_int_equal(control_of(of(state).core.last())->flags, wire::Control::flag_closed);
}

void test_closing_with_bytes_unread_resets_behind_the_data(void** state) {
    Scene& scene = of(state);
    assert_int_equal(scene.send("last", true), 4);
    scene.transmit.end(End::close_unread);
    assert_int_equal(scene.core.operations.size(), 2);
    assert_string_equal(scene.core.operations[0].bytes.c_str(), "last");
    assert_true(control_of(scene.core.last())->type == wire::Control::Type::rst);
}

void test_an_abort_drops_what_was_not_posted(void** state) {
    Scene& scene = of(state);
    assert_int_equal(scene.send("dropped", true), 7);
    scene.transmit.end(End::abort);
    assert_int_equal(scene.core.operations.size(), 1);
    assert_true(control_of(scene.core.last())->type == wire::Control::Type::rst);
}

void test_nothing_is_sent_before_the_connection(void** state) {
    Scene& scene = of(state);
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
    Scene& scene = of(state);
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
void map(Scene& scene) { assert_null(scene.link.on_map({wire::MapMessage::Type::map, 1000, 65536, map_address, 5})); }

void test_memory_that_is_not_mapped_cannot_be_written(void** state) {
    Scene& scene = of(state);
    assert_int_equal(scene.write(10, 1000), -FI_EINVAL);
    map(scene);
    assert_int_equal(scene.write(10, 999), -FI_EINVAL);
    assert_int_equal(scene.write(10, 1000 + 65536 - 9), -FI_EINVAL);
    assert_int_equal(scene.transmit.write(nullptr, nullptr, 10, 1000, false, scene.left), -FI_EINVAL);
    assert_int_equal(scene.core.count(Kind::write), 0);
}

void test_a_write_to_a_map_carries_no_immediate(void** state) {
    Scene& scene = of(state);
    map(scene);
    assert_int_equal(scene.write(100, 1010), 100);
    assert_int_equal(scene.core.count(Kind::write), 1);
    assert_int_equal(scene.core.last().bytes.size(), 100);
    assert_int_equal(scene.core.last().address, map_address + 10);
    assert_int_equal(scene.core.last().key, 5);
    assert_true((scene.core.last().flags & FI_REMOTE_CQ_DATA) == 0);
}

void test_writes_to_a_map_that_are_held_back_ask_for_a_poll(void** state) {
    Scene& scene = of(state);
    map(scene);
    assert_int_equal(scene.write(100, 1000), 100);
    assert_false(scene.left.poll);
    scene.core.refusal = -FI_EAGAIN;
    assert_int_equal(scene.write(100, 1000), 100);
    assert_true(scene.left.poll);
}

void test_on_a_core_without_order_the_last_bytes_go_alone(void** state) {
    Scene& scene = of(state);
    map(scene);
    assert_int_equal(scene.write(100, 1000), 100);
    assert_int_equal(scene.core.count(Kind::write), 2);
    const auto& operations = scene.core.operations;
    assert_int_equal(operations[operations.size() - 2].bytes.size(), 92);
    assert_int_equal(operations.back().bytes.size(), 8);
    assert_int_equal(operations.back().address, map_address + 92);
}

void test_a_write_to_a_map_does_not_pass_a_header_that_waits(void** state) {
    Scene& scene = of(state);
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

// ---- a larger staging ring

void grow(Scene& scene) {
    for (int i = 0; i < 1000 && !scene.left.resize; ++i) {
        scene.send(PartsScene::staging_size + 1);
        scene.complete_all();
        scene.acknowledge_all();
    }
    assert_true(scene.left.resize);
    assert_null(scene.broken);
    scene.transmit.resize();
    assert_int_equal(scene.link.staging_size(), 4 * PartsScene::staging_size);
    assert_true(scene.link.staging_moves());
}

void test_a_busy_stream_gets_a_larger_staging_ring(void** state) {
    Scene& scene = of(state);
    grow(scene);
    scene.complete_all(); // of the ring before it
    scene.transmit.resize();
    assert_false(scene.link.staging_moves());
    scene.acknowledge_all();
    assert_int_equal(scene.send(4 * PartsScene::staging_size), 4 * PartsScene::staging_size);
    const auto& last = scene.core.last().bytes;
    assert_int_equal(std::count(last.begin(), last.end(), 'x'), last.size());
    assert_true(last.size() > chunk);
}

void test_an_empty_staging_ring_shrinks(void** state) {
    Scene& scene = of(state);
    grow(scene);
    assert_int_equal(scene.send(100), 100);
    scene.transmit.shrink(PartsScene::staging_size); // some of what was sent is under way
    assert_int_equal(scene.link.staging_size(), 4 * PartsScene::staging_size);
    scene.complete_all();
    scene.acknowledge_all();
    scene.transmit.shrink(PartsScene::staging_size);
    assert_int_equal(scene.link.staging_size(), PartsScene::staging_size);
    assert_false(scene.link.staging_moves());
    assert_int_equal(scene.send(PartsScene::staging_size + 1), PartsScene::staging_size);
    assert_null(scene.broken);
}

// The core is done with all of it, and the peer reads nothing.
size_t fill_both(Scene& scene) {
    size_t filled = 0;
    for (ssize_t sent = 0; (sent = scene.send(1000)) > 0;) {
        filled += static_cast<size_t>(sent);
        scene.complete_all();
    }
    return filled;
}

void test_a_staging_ring_grows_once_the_peers_ring_is_full_too(void** state) {
    Scene& scene = of(state);
    assert_int_equal(scene.send(PartsScene::staging_size), PartsScene::staging_size);
    assert_false(scene.transmit.enlarge_full()); // it waits for the core
    scene.complete_all();
    assert_int_equal(fill_both(scene), PartsScene::ring_size);
    assert_int_equal(scene.link.staging_size(), PartsScene::staging_size);
    assert_true(scene.transmit.enlarge_full());
    assert_int_equal(scene.link.staging_size(), 4 * PartsScene::staging_size);
    assert_false(scene.transmit.enlarge_full());
    assert_int_equal(fill_both(scene), 3 * PartsScene::staging_size);
    assert_false(scene.transmit.enlarge_full()); // the limit
    assert_int_equal(scene.send(1), -FI_EAGAIN);
    assert_null(scene.broken);
}

void test_a_staging_ring_of_a_size_that_was_asked_for_stays(void** state) {
    Scene& scene = of(state);
    for (int i = 0; i < 100; ++i) {
        scene.send(PartsScene::staging_size + 1);
        scene.complete_all();
        scene.acknowledge_all();
    }
    assert_false(scene.left.resize);
    scene.transmit.resize();
    assert_int_equal(scene.link.staging_size(), PartsScene::staging_size);
    fill_both(scene);
    assert_false(scene.transmit.enlarge_full());
    assert_int_equal(scene.link.staging_size(), PartsScene::staging_size);
}

} // namespace

int main() {
#define test(name, set_up) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
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
        test(test_a_busy_stream_gets_a_larger_staging_ring, set_up_growing),
        test(test_an_empty_staging_ring_shrinks, set_up_growing),
        test(test_a_staging_ring_grows_once_the_peers_ring_is_full_too, set_up_growing),
        test(test_a_staging_ring_of_a_size_that_was_asked_for_stays, set_up),
    };
    return RUN_TAP(tests);
}
