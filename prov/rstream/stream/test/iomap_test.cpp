// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Mapped memory from the program's side: when a removal is complete, and which of several it means. There are no
// registrations; the peer's answers are made by hand.
#include "prov/rstream/stream/iomap.hpp"

#include <memory>

#include "prov/rstream/test/wire_test.hpp"

using namespace rstream;
using wire::MapMessage;

namespace {

constexpr size_t kept_by_peer = 2;
constexpr size_t length = 4096;

struct Scene {
    Scene() { map.agree(kept_by_peer); }

    int add(const void* buffer, uint64_t& offset) {
        const int ret = map.claim(offset, length, true);
        if (ret == 0) {
            map.add(buffer, length, offset, true, 0x1000, nullptr);
        }
        return ret;
    }
    // What is to be said to the peer is with the core: how many messages that were.
    int say() {
        int count = 0;
        while (map.wire()->next()) {
            ++count;
        }
        return count;
    }
    const char* answer(uint64_t offset) { return map.wire()->on_message({MapMessage::Type::unmapped, offset}); }

    Iomap map{0};
    std::byte memory[length] = {};
    std::byte other[length] = {};
    uint64_t offset = wire::Maps::any;
};

int set_up(void** state) {
    *state = std::make_unique<Scene>().release();
    return 0;
}

int tear_down(void** state) {
    const std::unique_ptr<Scene> scene(static_cast<Scene*>(*state));
    return 0;
}

Scene& of(void** state) { return *static_cast<Scene*>(*state); }

void test_without_an_agreement_the_peer_is_told_of_nothing(void**) {
    Iomap map(0);
    map.agree(0);
    assert_null(map.wire());
    uint64_t offset = 0;
    assert_int_equal(map.claim(offset, length, true), -FI_ENOSPC);
    assert_int_equal(map.claim(offset, length, false), 0);
    assert_false(map.answered(true));
}

void test_either_end_may_offer(void**) {
    Iomap map(1);
    assert_int_equal(map.offered(), 1);
    map.agree(0);
    assert_non_null(map.wire());
    uint64_t offset = 0;
    assert_int_equal(map.claim(offset, length, true), -FI_ENOSPC);
}

void test_the_peer_keeps_only_so_many(void** state) {
    Scene& scene = of(state);
    uint64_t second = scene.offset;
    uint64_t third = scene.offset;
    assert_int_equal(scene.add(scene.memory, scene.offset), 0);
    assert_int_equal(scene.add(scene.other, second), 0);
    assert_int_not_equal(scene.offset, second);
    assert_int_equal(scene.add(scene.other, third), -FI_ENOSPC);
    assert_int_equal(scene.say(), 2);
}

void test_offsets_that_are_taken(void** state) {
    Scene& scene = of(state);
    scene.offset = 8192;
    assert_int_equal(scene.add(scene.memory, scene.offset), 0);
    uint64_t inside = 8192 + length - 1;
    assert_int_equal(scene.add(scene.other, inside), -FI_EADDRINUSE);
    uint64_t behind = 8192 + length;
    assert_int_equal(scene.add(scene.other, behind), 0);
}

void test_an_offset_whose_memory_could_not_be_registered_is_free_again(void** state) {
    Scene& scene = of(state);
    scene.offset = 8192;
    assert_int_equal(scene.map.claim(scene.offset, length, true), 0);
    scene.map.unclaim(scene.offset, true);
    assert_int_equal(scene.add(scene.memory, scene.offset), 0);
    assert_int_equal(scene.say(), 1);
}

void test_memory_that_is_not_mapped_cannot_be_removed(void** state) {
    Scene& scene = of(state);
    assert_int_equal(scene.add(scene.memory, scene.offset), 0);
    assert_int_equal(scene.map.remove(scene.other, length, true, false), -FI_EINVAL);
    assert_int_equal(scene.map.remove(scene.memory, length - 1, true, false), -FI_EINVAL);
}

void test_local_memory_is_removed_at_once(void** state) {
    Scene& scene = of(state);
    assert_int_equal(scene.map.claim(scene.offset, length, false), 0);
    assert_int_equal(scene.offset, 0);
    scene.map.add(scene.memory, length, scene.offset, false, 0, nullptr);
    assert_int_equal(scene.say(), 0);
    assert_int_equal(scene.map.remove(scene.memory, length, true, false), 0);
    assert_int_equal(scene.map.remove(scene.memory, length, true, false), -FI_EINVAL);
}

void test_what_the_peer_was_not_told_of_is_removed_at_once(void** state) {
    Scene& scene = of(state);
    assert_int_equal(scene.add(scene.memory, scene.offset), 0);
    assert_int_equal(scene.map.remove(scene.memory, length, true, false), 0);
    assert_int_equal(scene.say(), 0);
}

void test_a_removal_waits_for_the_peer(void** state) {
    Scene& scene = of(state);
    assert_int_equal(scene.add(scene.memory, scene.offset), 0);
    assert_int_equal(scene.say(), 1);
    assert_int_equal(scene.map.remove(scene.memory, length, true, false), -FI_EAGAIN);
    assert_int_equal(scene.say(), 1);
    assert_false(scene.map.answered(false));
    assert_null(scene.answer(scene.offset));
    assert_true(scene.map.answered(false));
    assert_int_equal(scene.map.remove(scene.memory, length, true, false), 0);
    assert_false(scene.map.answered(false));
}

void test_nobody_is_woken_for_a_removal_that_is_not_awaited(void** state) {
    Scene& scene = of(state);
    assert_int_equal(scene.add(scene.memory, scene.offset), 0);
    assert_int_equal(scene.say(), 1);
    assert_int_equal(scene.map.remove(scene.memory, length, false, false), -FI_EAGAIN);
    assert_int_equal(scene.say(), 1);
    assert_null(scene.answer(scene.offset));
    assert_false(scene.map.answered(false));
    assert_int_equal(scene.map.remove(scene.memory, length, false, false), 0);
}

void test_the_end_of_the_peer_answers(void** state) {
    Scene& scene = of(state);
    assert_int_equal(scene.add(scene.memory, scene.offset), 0);
    assert_int_equal(scene.say(), 1);
    assert_int_equal(scene.map.remove(scene.memory, length, true, false), -FI_EAGAIN);
    assert_true(scene.map.answered(true));
    assert_int_equal(scene.map.remove(scene.memory, length, true, true), 0);
    assert_false(scene.map.answered(true));
}

void test_of_one_memory_mapped_twice_the_removal_under_way_comes_first(void** state) {
    Scene& scene = of(state);
    uint64_t second = scene.offset;
    assert_int_equal(scene.add(scene.memory, scene.offset), 0);
    assert_int_equal(scene.add(scene.memory, second), 0);
    assert_int_equal(scene.say(), 2);
    assert_int_equal(scene.map.remove(scene.memory, length, true, false), -FI_EAGAIN);
    assert_int_equal(scene.say(), 1);
    assert_int_equal(scene.map.remove(scene.memory, length, true, false), -FI_EAGAIN);
    assert_int_equal(scene.say(), 0); // the second was not asked for
    assert_null(scene.answer(scene.offset));
    assert_int_equal(scene.map.remove(scene.memory, length, true, false), 0);
    assert_non_null(scene.answer(second));
    assert_int_equal(scene.map.remove(scene.memory, length, true, false), -FI_EAGAIN);
}

void test_closing_asks_for_all_of_it(void** state) {
    Scene& scene = of(state);
    uint64_t second = scene.offset;
    assert_true(scene.map.remove_all(false));
    assert_int_equal(scene.add(scene.memory, scene.offset), 0);
    assert_int_equal(scene.add(scene.other, second), 0);
    assert_int_equal(scene.say(), 2);
    assert_false(scene.map.remove_all(false));
    assert_int_equal(scene.say(), 2);
    assert_null(scene.answer(second));
    assert_false(scene.map.remove_all(false));
    assert_int_equal(scene.map.remove(scene.other, length, true, false), -FI_EINVAL);
    assert_true(scene.map.remove_all(true));
}

void test_dropping_asks_nobody(void** state) {
    Scene& scene = of(state);
    assert_int_equal(scene.add(scene.memory, scene.offset), 0);
    assert_int_equal(scene.say(), 1);
    scene.map.drop_all();
    assert_int_equal(scene.say(), 0);
    assert_true(scene.map.remove_all(false));
}

} // namespace

int main() {
#define test(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_without_an_agreement_the_peer_is_told_of_nothing),
        cmocka_unit_test(test_either_end_may_offer),
        test(test_the_peer_keeps_only_so_many),
        test(test_offsets_that_are_taken),
        test(test_an_offset_whose_memory_could_not_be_registered_is_free_again),
        test(test_memory_that_is_not_mapped_cannot_be_removed),
        test(test_local_memory_is_removed_at_once),
        test(test_what_the_peer_was_not_told_of_is_removed_at_once),
        test(test_a_removal_waits_for_the_peer),
        test(test_nobody_is_woken_for_a_removal_that_is_not_awaited),
        test(test_the_end_of_the_peer_answers),
        test(test_of_one_memory_mapped_twice_the_removal_under_way_comes_first),
        test(test_closing_asks_for_all_of_it),
        test(test_dropping_asks_nobody),
    };
    return RUN_TAP(tests);
}
