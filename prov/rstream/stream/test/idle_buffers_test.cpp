// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Memory of closed streams: who gets it, that nothing is left in it, and how much is kept.
#include "prov/rstream/stream/idle_buffers.hpp"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "prov/rstream/test/wire_test.hpp"

using namespace rstream;

namespace {

constexpr size_t size = 8192;

Buffer allocated(IdleBuffers& idle, size_t bytes = size) {
    Buffer made;
    assert_int_equal(idle.allocate(bytes, made), 0);
    assert_int_equal(made.size(), bytes);
    return made;
}

void test_a_buffer_is_used_again(void**) {
    IdleBuffers idle;
    Buffer first = allocated(idle);
    const void* memory = first.data();
    idle.give(std::move(first));
    assert_int_equal(idle.count(), 1);
    const Buffer second = allocated(idle);
    assert_ptr_equal(second.data(), memory);
    assert_int_equal(idle.count(), 0);
    const Buffer third = allocated(idle);
    assert_ptr_not_equal(third.data(), memory);
}

void test_nothing_is_left_in_cleared_memory(void**) {
    IdleBuffers idle;
    for (const size_t bytes : {size, size_t{100}, IdleBuffers::max_size}) {
        Buffer first = allocated(idle, bytes);
        std::memset(first.data(), 0x5a, bytes);
        idle.give(std::move(first));
        Buffer second;
        assert_int_equal(idle.allocate_cleared(bytes, second), 0);
        assert_int_equal(idle.count(), 0);
        assert_true(
            std::all_of(second.data(), second.data() + bytes, [](std::byte one) { return one == std::byte{0}; }));
    }
}

void test_another_size_is_another_buffer(void**) {
    IdleBuffers idle;
    idle.give(allocated(idle));
    const Buffer other = allocated(idle, 2 * size);
    assert_int_equal(idle.count(), 1);
}

void test_a_large_buffer_and_none_are_not_kept(void**) {
    IdleBuffers idle;
    idle.give(allocated(idle, IdleBuffers::max_size + 1));
    idle.give(Buffer());
    assert_int_equal(idle.count(), 0);
}

void test_the_oldest_makes_way(void**) {
    IdleBuffers idle;
    std::vector<Buffer> all;
    for (size_t i = 0; i < IdleBuffers::limit; ++i) {
        all.push_back(allocated(idle, size / 2)); // of a size that is not asked for any more
    }
    for (Buffer& one : all) {
        idle.give(std::move(one));
    }
    std::set<const void*> given;
    std::vector<Buffer> later;
    for (size_t i = 0; i < IdleBuffers::limit; ++i) {
        later.push_back(allocated(idle));
        given.insert(later.back().data());
    }
    for (Buffer& one : later) {
        idle.give(std::move(one));
        assert_int_equal(idle.count(), IdleBuffers::limit);
    }
    for (Buffer& one : later) {
        one = allocated(idle);
        assert_true(given.count(one.data()) != 0);
    }
    assert_int_equal(idle.count(), 0);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_buffer_is_used_again),
        cmocka_unit_test(test_nothing_is_left_in_cleared_memory),
        cmocka_unit_test(test_another_size_is_another_buffer),
        cmocka_unit_test(test_a_large_buffer_and_none_are_not_kept),
        cmocka_unit_test(test_the_oldest_makes_way),
    };
    return RUN_TAP(tests);
}
