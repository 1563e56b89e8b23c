// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What a buffer of another size takes: the memory of a ring that moves, when the staging ring is to move, and how many
// bytes a write carries then.
#include "prov/rstream/stream/chunk_size.hpp"
#include "prov/rstream/stream/ring_buffer.hpp"
#include "prov/rstream/stream/staging_threshold.hpp"

#include <memory>

#include <sys/mman.h>

#include "prov/rstream/test/wire_test.hpp"

using namespace rstream;

namespace {

constexpr size_t page = 4096;
constexpr size_t KiB = 1024;

int set_up(void** state) {
    auto ring = std::make_unique<RingBuffer>();
    const int ret = ring->current().buffer.allocate(page);
    *state = ring.release();
    return ret;
}

int tear_down(void** state) {
    const std::unique_ptr<RingBuffer> ring(static_cast<RingBuffer*>(*state));
    return 0;
}

RingBuffer& of(void** state) { return *static_cast<RingBuffer*>(*state); }

RegisteredBuffer larger() {
    RegisteredBuffer made;
    made.buffer.allocate(4 * page);
    return made;
}

// ---- RingBuffer

void test_a_ring_that_does_not_move_is_in_one_buffer(void** state) {
    RingBuffer& ring = of(state);
    assert_ptr_equal(ring.at(100, false), ring.current().buffer.data() + 100);
    assert_null(ring.of(true).buffer.data());
    assert_null(ring.current().desc());
}

void test_a_ring_that_moves_is_in_two(void** state) {
    RingBuffer& ring = of(state);
    const std::byte* before = ring.current().buffer.data();
    ring.set_next(larger());
    assert_ptr_equal(ring.at(100, false), before + 100);
    assert_ptr_equal(ring.at(100, true), ring.of(true).buffer.data() + 100);
    assert_int_equal(ring.of(true).buffer.size(), 4 * page);
    assert_int_equal(ring.current().buffer.size(), page);
}

void test_settling_gives_the_old_buffer_back(void** state) {
    RingBuffer& ring = of(state);
    const std::byte* before = ring.current().buffer.data();
    ring.set_next(larger());
    const std::byte* next = ring.of(true).buffer.data();
    bool given_back = false;
    {
        const RegisteredBuffer emptied = ring.settle();
        given_back = emptied.buffer.data() == before && emptied.buffer.size() == page;
    }
    assert_true(given_back);
    assert_ptr_equal(ring.at(0, false), next);
    assert_int_equal(ring.current().buffer.size(), 4 * page);
    assert_null(ring.of(true).buffer.data());
}

void test_retired_addresses_stay_taken(void** state) {
    RingBuffer& ring = of(state);
    std::byte* before = ring.current().buffer.data();
    ring.set_next(larger());
    {
        RegisteredBuffer emptied = ring.settle();
        emptied.buffer.retire();
        ring.keep_addresses(std::move(emptied.buffer));
    }
    unsigned char resident = 0;
    assert_int_equal(mincore(before, page, &resident), 0); // ENOMEM where nothing is mapped
}

void test_one_thread_resizes_at_a_time(void** state) {
    RingBuffer& ring = of(state);
    assert_true(ring.begin_growth());
    assert_false(ring.begin_growth());
    assert_false(ring.begin_resize());
    ring.end_resize();
    assert_true(ring.begin_resize());
    assert_false(ring.begin_growth());
    ring.end_resize();
}

void test_what_had_no_memory_to_grow_may_still_shrink(void** state) {
    RingBuffer& ring = of(state);
    assert_true(ring.begin_growth());
    ring.end_growth_without_memory();
    assert_false(ring.begin_growth());
    assert_true(ring.begin_resize());
    ring.end_resize();
    assert_false(ring.begin_growth());
}

void test_retired_addresses_are_used_again(void** state) {
    RingBuffer& ring = of(state);
    std::byte* before = ring.current().buffer.data();
    before[5] = std::byte{5};
    ring.set_next(larger());
    {
        RegisteredBuffer emptied = ring.settle();
        emptied.buffer.retire();
        ring.keep_addresses(std::move(emptied.buffer));
    }
    assert_int_equal(ring.take_addresses(2 * page).size(), 0);
    bool as_new = false;
    {
        Buffer again = ring.take_addresses(page);
        as_new = again.data() == before && again.revive() == 0 && before[5] == std::byte{0};
        before[5] = std::byte{6}; // accessible
    }
    assert_true(as_new);
    assert_int_equal(ring.take_addresses(page).size(), 0);
}

// ---- StagingThreshold

void test_the_staging_ring_follows_the_peers_up_to_its_limit(void**) {
    const StagingThreshold threshold(256 * KiB);
    assert_int_equal(threshold.goal(128 * KiB, 64 * KiB), 128 * KiB);
    assert_int_equal(threshold.goal(1024 * KiB, 64 * KiB), 256 * KiB);
    assert_int_equal(threshold.goal(64 * KiB, 64 * KiB), 0);
    assert_int_equal(threshold.goal(1024 * KiB, 256 * KiB), 0);
    assert_int_equal(StagingThreshold(0).goal(1024 * KiB, 64 * KiB), 0); // a size that the program has chosen
}

void test_it_moves_after_so_many_stalls(void**) {
    StagingThreshold threshold(256 * KiB);
    for (uint32_t i = 0; i < wire::RingWish::stall_limit; ++i) {
        assert_false(threshold.reached());
        threshold.on_stall();
    }
    assert_true(threshold.reached());
    threshold.reset();
    assert_false(threshold.reached());
}

void test_it_moves_to_its_limit_at_once_if_the_peers_is_full_too(void**) {
    StagingThreshold threshold(256 * KiB);
    threshold.on_both_full(32 * KiB);
    assert_true(threshold.reached());
    assert_int_equal(threshold.goal(32 * KiB, 32 * KiB), 256 * KiB);
    threshold.reset();
    assert_false(threshold.reached());
    assert_int_equal(threshold.goal(32 * KiB, 32 * KiB), 0);
    threshold.on_both_full(256 * KiB);
    assert_false(threshold.reached());
    StagingThreshold fixed(0);
    fixed.on_both_full(32 * KiB);
    assert_false(fixed.reached());
}

// ---- ChunkSize

void test_a_chunk_is_a_part_of_the_smaller_ring(void**) {
    ChunkSize chunk(1024 * KiB);
    assert_int_equal(chunk.get(), 0);
    assert_int_equal(chunk.fit(64 * KiB, 1024 * KiB), 32 * KiB); // two at once
    assert_int_equal(chunk.fit(1024 * KiB, 64 * KiB), 32 * KiB);
    assert_int_equal(chunk.fit(160 * KiB, 1024 * KiB), 64 * KiB);
    assert_int_equal(chunk.fit(512 * KiB, 512 * KiB), 128 * KiB); // four
    assert_int_equal(chunk.get(), 128 * KiB);
    assert_int_equal(chunk.fit(8192 * KiB, 8192 * KiB), ChunkSize::max);
}

void test_a_chunk_is_no_longer_than_the_cores_messages(void**) {
    ChunkSize chunk(10000);
    assert_int_equal(chunk.fit(1024 * KiB, 1024 * KiB), 10000);
}

void test_a_chunk_is_small_where_frames_get_lost(void**) {
    ChunkSize chunk(1024 * KiB);
    assert_false(chunk.update_loss());
    chunk.on_completed(1000, LateWrites::late);
    assert_true(chunk.update_loss());
    assert_false(chunk.update_loss());
    assert_true(chunk.loses_frames());
    assert_int_equal(chunk.fit(1024 * KiB, 1024 * KiB), ChunkSize::lossy);
    chunk.on_completed(LateWrites::first_trial, std::chrono::milliseconds(1));
    assert_int_equal(chunk.fit(1024 * KiB, 1024 * KiB), ChunkSize::lossy); // until it is updated
    assert_true(chunk.update_loss());
    assert_int_equal(chunk.fit(1024 * KiB, 1024 * KiB), ChunkSize::max);
}

} // namespace

int main() {
#define test(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const CMUnitTest tests[] = {
        test(test_a_ring_that_does_not_move_is_in_one_buffer),
        test(test_a_ring_that_moves_is_in_two),
        test(test_settling_gives_the_old_buffer_back),
        test(test_retired_addresses_stay_taken),
        test(test_retired_addresses_are_used_again),
        test(test_one_thread_resizes_at_a_time),
        test(test_what_had_no_memory_to_grow_may_still_shrink),
        cmocka_unit_test(test_the_staging_ring_follows_the_peers_up_to_its_limit),
        cmocka_unit_test(test_it_moves_after_so_many_stalls),
        cmocka_unit_test(test_it_moves_to_its_limit_at_once_if_the_peers_is_full_too),
        cmocka_unit_test(test_a_chunk_is_a_part_of_the_smaller_ring),
        cmocka_unit_test(test_a_chunk_is_no_longer_than_the_cores_messages),
        cmocka_unit_test(test_a_chunk_is_small_where_frames_get_lost),
    };
    return RUN_TAP(tests);
}
