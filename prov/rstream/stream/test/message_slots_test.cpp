// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The slots of messages: which is used when, and whose completion is whose.
#include "prov/rstream/stream/message_slots.hpp"

#include <memory>

#include "prov/rstream/test/wire_test.hpp"

using namespace rstream;

namespace {

constexpr size_t receives = 10;
constexpr size_t headers = 3;

int set_up_with(void** state, bool contexts) {
    auto slots = std::make_unique<MessageSlots>();
    IdleBuffers idle;
    const int ret = slots->open(receives, headers, contexts, idle);
    *state = slots.release();
    return ret;
}
int set_up(void** state) { return set_up_with(state, false); }
int set_up_contexts(void** state) { return set_up_with(state, true); }

int tear_down(void** state) {
    const std::unique_ptr<MessageSlots> slots(static_cast<MessageSlots*>(*state));
    return 0;
}

MessageSlots& of(void** state) { return *static_cast<MessageSlots*>(*state); }

// The slot of an arrival; -1 if it took none.
int slot_of(const MessageSlots& slots, const void* context) {
    const auto slot = slots.slot_of(context);
    return slot ? static_cast<int>(*slot) : -1;
}

void test_an_arrival_tells_its_slot(void** state) {
    MessageSlots& slots = of(state);
    assert_int_equal(slots.receives(), receives);
    for (size_t i = 0; i < receives; ++i) {
        assert_int_equal(slot_of(slots, slots.context(i)), i);
    }
}

void test_an_arrival_without_a_context_took_no_slot(void** state) { assert_int_equal(slot_of(of(state), nullptr), -1); }

void test_the_context_of_something_else_is_no_slot(void** state) {
    MessageSlots& slots = of(state);
    assert_int_equal(slot_of(slots, slots.next_control()), -1);
    assert_int_equal(slot_of(slots, slots.receive(0) - 1), -1);
    fi_context2 other;
    assert_int_equal(slot_of(slots, &other), -1);
}

void test_without_contexts_a_slot_is_told_by_its_memory(void** state) {
    MessageSlots& slots = of(state);
    assert_ptr_equal(slots.context(3), slots.receive(3));
}

void test_a_slot_is_the_next_until_its_message_was_posted(void** state) {
    MessageSlots& slots = of(state);
    const std::byte* control = slots.next_control();
    const std::byte* header = slots.next_header();
    assert_ptr_equal(slots.next_control(), control);
    slots.control_posted();
    assert_ptr_equal(slots.next_control(), control + MessageSlots::slot_size);
    assert_ptr_equal(slots.next_header(), header);
    slots.header_posted();
    assert_ptr_equal(slots.next_header(), header + MessageSlots::slot_size);
}

void test_slots_are_used_again_and_never_by_another_kind(void** state) {
    MessageSlots& slots = of(state);
    const std::byte* controls = slots.receive(0) + receives * MessageSlots::slot_size;
    const std::byte* first_header = controls + wire::control_credits * MessageSlots::slot_size;
    for (size_t i = 0; i < 3 * wire::control_credits; ++i) {
        assert_ptr_equal(slots.next_control(), controls + i % wire::control_credits * MessageSlots::slot_size);
        assert_ptr_equal(slots.next_header(), first_header + i % headers * MessageSlots::slot_size);
        slots.control_posted();
        slots.header_posted();
    }
    assert_ptr_equal(slots.memory().buffer.data() + slots.memory().buffer.size(),
                     first_header + headers * MessageSlots::slot_size);
}

} // namespace

int main() {
#define test(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
#define test_contexts(name)                                                                                            \
    { #name " (contexts)", name, set_up_contexts, tear_down, nullptr }
    const CMUnitTest tests[] = {
        test(test_an_arrival_tells_its_slot),
        test_contexts(test_an_arrival_tells_its_slot),
        test(test_an_arrival_without_a_context_took_no_slot),
        test(test_the_context_of_something_else_is_no_slot),
        test_contexts(test_the_context_of_something_else_is_no_slot),
        test(test_without_contexts_a_slot_is_told_by_its_memory),
        test(test_a_slot_is_the_next_until_its_message_was_posted),
        test(test_slots_are_used_again_and_never_by_another_kind),
    };
    return RUN_TAP(tests);
}
