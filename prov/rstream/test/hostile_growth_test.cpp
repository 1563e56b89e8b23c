// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A peer that abuses larger rings: it asks where none may be made, asks without end, offers what nobody asked for or
// what makes no sense, moves to where nothing was offered, and writes to the ring that it has left.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "prov/rstream/test/hostile_peer.hpp"

using namespace fabtests;
using namespace hostile;

namespace {

using Type = wire::Control::Type;

wire::Control message(Type type, uint32_t argument = 0) {
    wire::Control control;
    control.type = type;
    control.argument = argument;
    return control;
}

wire::Control offer(uint32_t size) {
    wire::Control control = message(Type::offer, size);
    control.address = 4096;
    control.key = 99;
    return control;
}

size_t ring_of(Stream& victim) { return victim.get_option(FI_OPT_RECV_BUF_SIZE); }

void expect_attack_fails(const std::function<void(Raw&)>& attack) {
    Scene scene;
    Raw raw(scene);
    const auto victim = scene.attack(raw);
    attack(raw);
    expect_reset(scene, *victim, raw);
    scene.others_carry_on();
}

// The victim is asked for a larger ring, and offers one.
void ask(Scene& scene, Raw& raw, Stream& victim) {
    raw.offer.reset();
    EXPECT_RESULT(raw.control(message(Type::grow)), 0);
    EXPECT(scene.until(raw, victim, [&] { return raw.offer.has_value(); }));
    EXPECT_EQ(raw.offer->argument, 4 * ring_of(victim));
}

// From now on the peer writes to the ring that was offered; `at` is the position in the stream.
void move(Raw& raw, uint32_t at) {
    EXPECT_RESULT(raw.control(message(Type::move, at)), 0);
    raw.peer.ring_address = raw.offer->address;
    raw.peer.ring_key = raw.offer->key;
    raw.peer.ring_size = raw.offer->argument;
}

void expect_received(Scene& scene, Raw& raw, Stream& victim, size_t length) {
    EXPECT(scene.until(raw, victim, [&] { return peek_recv(victim) == static_cast<ssize_t>(length); }));
    std::vector<char> bytes(length);
    EXPECT_EQ(victim.recv_all(bytes.data(), length), length);
}

void test_a_request_where_sizes_were_set_resets() {
    setenv("FI_RSTREAM_RECV_BUF_SIZE", "32768", 1);
    expect_attack_fails([](Raw& raw) {
        EXPECT_EQ(raw.peer.features & wire::Hello::feature_growth, 0);
        raw.control(message(Type::grow));
    });
    unsetenv("FI_RSTREAM_RECV_BUF_SIZE");
}

void test_a_flood_of_requests_resets() {
    expect_attack_fails([](Raw& raw) {
        EXPECT(raw.peer.features & wire::Hello::feature_growth);
        raw.control(message(Type::grow));
        raw.control(message(Type::grow));
    });
}

// However often it asks, there is one ring that it could move to, and one that it writes to.
void test_a_peer_that_asks_and_never_moves_gets_one_ring() {
    Scene scene;
    Raw raw(scene);
    const auto victim = scene.attack(raw);
    const size_t before = ring_of(*victim);
    ask(scene, raw, *victim);
    const wire::Control first = *raw.offer;
    raw.offer.reset();
    raw.control(message(Type::grow));
    raw.data(1);
    expect_received(scene, raw, *victim, 1);
    EXPECT(!raw.offer.has_value());
    EXPECT_EQ(ring_of(*victim), before);
    raw.control(message(Type::grow));
    expect_reset(scene, *victim, raw);
    EXPECT(first.argument != 0);
    scene.others_carry_on();
}

void test_an_offer_that_was_not_asked_for_resets() {
    expect_attack_fails([](Raw& raw) { raw.control(offer(1 << 20)); });
}

void test_a_move_that_was_not_offered_resets() {
    expect_attack_fails([](Raw& raw) { raw.control(message(Type::move)); });
}

void test_a_move_at_another_position_resets() {
    Scene scene;
    Raw raw(scene);
    const auto victim = scene.attack(raw);
    ask(scene, raw, *victim);
    move(raw, 5);
    expect_reset(scene, *victim, raw);
    scene.others_carry_on();
}

void test_two_moves_reset() {
    Scene scene;
    Raw raw(scene);
    const auto victim = scene.attack(raw);
    ask(scene, raw, *victim);
    move(raw, 0);
    move(raw, 0);
    expect_reset(scene, *victim, raw);
    scene.others_carry_on();
}

void test_growth_behind_the_end_resets() {
    for (const Type type : {Type::grow, Type::move}) {
        Scene scene;
        Raw raw(scene);
        const auto victim = scene.attack(raw);
        raw.control(message(Type::fin));
        raw.control(message(type));
        // The end came first, and stands.
        char byte = 0;
        EXPECT_RESULT(victim->recv_some(&byte, 1), 0);
        scene.ended(*victim);
        EXPECT(scene.until(raw, *victim, [&] { return send(*victim, "x", 1) == -FI_EPIPE; }));
        scene.others_carry_on();
    }
}

// The honest course, and then a write with the key of the ring that was left: it is good for nothing.
void test_the_key_of_a_ring_that_was_left_is_dead() {
    Scene scene;
    Raw raw(scene);
    const auto victim = scene.attack(raw);
    raw.data(100);
    expect_received(scene, raw, *victim, 100);
    const wire::Hello old = raw.peer;
    ask(scene, raw, *victim);
    move(raw, 100);
    raw.data(2000);
    expect_received(scene, raw, *victim, 2000);
    EXPECT_EQ(ring_of(*victim), raw.peer.ring_size);
    EXPECT(old.ring_key != raw.peer.ring_key);
    raw.poke(old.ring_address, 64, old.ring_key);
    expect_reset(scene, *victim, raw);
    scene.others_carry_on();
}

void test_bytes_beyond_the_larger_ring_reset() {
    Scene scene;
    Raw raw(scene);
    const auto victim = scene.attack(raw);
    ask(scene, raw, *victim);
    move(raw, 0);
    raw.data(raw.peer.ring_size + 1);
    expect_reset(scene, *victim, raw);
    scene.others_carry_on();
}

// A victim whose sending is held up until it has asked for a larger ring, as the peer's hello invites it to.
void expect_offer_fails(const wire::Control& offered) {
    Scene scene;
    Raw raw(scene);
    wire::Hello hello = raw.hello();
    hello.ring_size = 4096;
    hello.features |= wire::Hello::feature_growth;
    raw.connect(encoded(hello));
    const auto victim = scene.accept(raw);
    std::vector<char> bytes(65536);
    wire::Control credit;
    for (int i = 0; i < 40; ++i) {
        // All of the window is used once nothing more is taken.
        const auto full = [&] { return send(*victim, bytes.data(), bytes.size()) == -FI_EAGAIN; };
        EXPECT(scene.until(raw, *victim, full));
        if (i < 39) {
            credit.consumed += 4096;
            EXPECT_RESULT(raw.control(credit), 0);
            const size_t before = victim->get_option(FI_OPT_SEND_BUF_SIZE);
            EXPECT(scene.until(raw, *victim, [&] { return peek_send(*victim) > 0; }));
            EXPECT_EQ(before, victim->get_option(FI_OPT_SEND_BUF_SIZE));
        }
    }
    EXPECT_RESULT(raw.control(offered), 0);
    const auto gone = [&] { return send(*victim, "x", 1) == -FI_EPIPE; };
    EXPECT(scene.until(raw, *victim, gone));
    scene.ended(*victim);
    scene.others_carry_on();
}

void test_an_offer_of_no_sense_resets() {
    for (const uint32_t size : {0U, 4096U, (1U << 30) + 1, UINT32_MAX}) {
        expect_offer_fails(offer(size));
    }
}

// The victim writes where it was told to; that there is nothing harms the peer alone.
void test_an_offer_of_memory_that_does_not_exist_harms_its_own_connection() { expect_offer_fails(offer(1 << 20)); }

} // namespace

int main() {
    show_core();
    // libfabric's cache keeps keys alive, see SECURITY in fi_rstream(7).
    setenv("FI_MR_CACHE_MAX_COUNT", "0", 0);
    const CMUnitTest tests[] = {
        FABTEST(test_a_request_where_sizes_were_set_resets),
        FABTEST(test_a_flood_of_requests_resets),
        FABTEST(test_a_peer_that_asks_and_never_moves_gets_one_ring),
        FABTEST(test_an_offer_that_was_not_asked_for_resets),
        FABTEST(test_a_move_that_was_not_offered_resets),
        FABTEST(test_a_move_at_another_position_resets),
        FABTEST(test_two_moves_reset),
        FABTEST(test_growth_behind_the_end_resets),
        FABTEST(test_the_key_of_a_ring_that_was_left_is_dead),
        FABTEST(test_bytes_beyond_the_larger_ring_reset),
        FABTEST(test_an_offer_of_no_sense_resets),
        FABTEST(test_an_offer_of_memory_that_does_not_exist_harms_its_own_connection),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
