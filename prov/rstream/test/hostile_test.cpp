// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A peer that speaks the protocol wrongly: false hellos, immediates and messages of no known form, lengths beyond the
// ring, credit for what was not sent, floods.
// Whatever it does, its own connection is reset at once, an honest one beside it carries on, the listener takes the
// next, and nothing is read or written out of bounds (run it under ASan or valgrind).
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>

#include "prov/rstream/test/hostile_peer.hpp"

using namespace fabtests;
using namespace hostile;

namespace {

using Attack = std::function<void(Raw&)>;

void expect_attack_fails(const Attack& attack) {
    Scene scene;
    Raw raw(scene);
    const auto victim = scene.attack(raw);
    attack(raw);
    expect_reset(scene, *victim, raw);
    scene.others_carry_on();
}

void expect_hello_refused(const std::vector<std::byte>& data) {
    Scene scene;
    Raw raw(scene);
    raw.connect(data);
    const Event answer = scene.queues.next(scene.raw_host, scene.host);
    EXPECT(!scene.queues.has_events(scene.host)); // the program sees nothing of it
    EXPECT(answer.error);
    EXPECT_EQ(answer.err, FI_ECONNREFUSED);
    scene.others_carry_on();
}

void patch(std::vector<std::byte>& bytes, size_t at, std::initializer_list<int> values) {
    for (const int value : values) {
        bytes[at++] = static_cast<std::byte>(value);
    }
}

// ---- false hellos; the offsets are those of wire/hello.cpp

void test_a_hello_that_is_missing_is_refused() { expect_hello_refused({}); }

void test_a_hello_that_is_cut_short_is_refused() {
    // The CM of RoCE pads with zeros: of what is missing, only what must not be zero is missed there.
    auto data = encoded(good_hello());
    data.resize(data.size() / 2);
    expect_hello_refused(data);
    if (core_name() == "tcp") {
        data = encoded(good_hello());
        data.pop_back();
        expect_hello_refused(data);
    }
}

void test_a_hello_with_another_magic_is_refused() {
    auto data = encoded(good_hello());
    patch(data, 0, {'G', 'E', 'T', ' '});
    expect_hello_refused(data);
}

void test_a_hello_of_another_version_is_refused() {
    auto data = encoded(good_hello());
    patch(data, 4, {wire::protocol_version + 1});
    expect_hello_refused(data);
}

void test_a_hello_with_no_ring_is_refused() {
    auto hello = good_hello();
    hello.ring_size = 0;
    expect_hello_refused(encoded(hello));
}

void test_a_hello_with_a_giant_ring_is_refused() {
    auto hello = good_hello();
    hello.ring_size = UINT32_MAX;
    expect_hello_refused(encoded(hello));
}

void test_a_hello_with_no_credits_is_refused() {
    auto hello = good_hello();
    hello.data_credits = 0;
    expect_hello_refused(encoded(hello));
    hello = good_hello();
    hello.control_credits = 0;
    expect_hello_refused(encoded(hello));
}

void test_a_hello_that_promises_more_user_data_than_it_has_is_refused() {
    auto hello = good_hello();
    hello.user_length = 200;
    expect_hello_refused(encoded(hello));
}

// ---- false data

void test_an_immediate_of_no_known_form_resets() {
    for (const uint64_t immediate : {uint64_t{0}, uint64_t{UINT32_MAX}, uint64_t{0x60000001}, uint64_t{0xa0000000}}) {
        expect_attack_fails([&](Raw& raw) { raw.write(immediate); });
    }
}

void test_a_length_beyond_the_ring_resets() {
    expect_attack_fails([](Raw& raw) { raw.data(raw.peer.ring_size + 1); });
    expect_attack_fails([](Raw& raw) { raw.data(wire::Immediate::max_length); });
}

void test_bytes_beyond_the_credit_reset() {
    expect_attack_fails([](Raw& raw) {
        raw.data(raw.peer.ring_size);
        raw.data(1);
    });
}

// The victim may have returned credit for the first of them before it looks at the last: it resets, or takes all that
// is there and no byte more.
void test_more_messages_than_credits_do_no_harm() {
    Scene scene;
    Raw raw(scene);
    const auto victim = scene.attack(raw);
    uint32_t flood = 0;
    while (flood < raw.peer.data_credits + 1000U && raw.data(1) == 0) {
        ++flood; // fewer where the core sends nothing that no receive is posted for
    }
    std::vector<char> bytes(65536);
    size_t total = 0;
    ssize_t got = 0;
    const auto start = Clock::now();
    do {
        raw.progress();
        got = fi_recv(victim->get(), bytes.data(), bytes.size(), nullptr, FI_ADDR_UNSPEC, nullptr);
        total += static_cast<size_t>(std::max<ssize_t>(got, 0));
    } while (got != -FI_ECONNRESET && total < flood && milliseconds_since(start) < patience(10000));
    EXPECT(got == -FI_ECONNRESET || total == flood);
    if (got == -FI_ECONNRESET) {
        scene.ended(*victim);
    }
    scene.others_carry_on();
}

void test_acknowledgement_of_control_messages_that_were_not_sent_resets() {
    expect_attack_fails([](Raw& raw) { raw.data(1, 15); });
}

void test_data_behind_the_end_resets() {
    Scene scene;
    Raw raw(scene);
    const auto victim = scene.attack(raw);
    wire::Control fin;
    fin.type = wire::Control::Type::fin;
    raw.control(fin);
    raw.data(1);
    // The stream had ended before; the end stands, and nothing that came behind it is delivered.
    char byte = 0;
    EXPECT_RESULT(victim->recv_some(&byte, 1), 0);
    scene.ended(*victim);
    scene.others_carry_on();
}

// ---- false control messages

void test_a_message_of_unknown_type_resets() {
    for (const uint8_t type : {0, 5, 255}) {
        expect_attack_fails([&](Raw& raw) {
            unsigned char bytes[wire::Control::size] = {type};
            raw.message(bytes, sizeof(bytes));
        });
    }
}

void test_a_message_with_unknown_flags_resets() {
    expect_attack_fails([](Raw& raw) {
        unsigned char bytes[wire::Control::size] = {1, 0x80};
        raw.message(bytes, sizeof(bytes));
    });
}

void test_a_message_of_another_size_resets() {
    for (const size_t length : {size_t{1}, wire::Control::size - 1, wire::Control::size + 1, size_t{4096}}) {
        expect_attack_fails([&](Raw& raw) {
            std::vector<unsigned char> bytes(length, 1);
            raw.message(bytes.data(), bytes.size());
        });
    }
}

void test_credit_for_what_was_not_sent_resets() {
    expect_attack_fails([](Raw& raw) {
        wire::Control lie;
        lie.consumed = 1;
        raw.control(lie);
    });
    expect_attack_fails([](Raw& raw) {
        wire::Control lie;
        lie.data_arrived = 1;
        raw.control(lie);
    });
    expect_attack_fails([](Raw& raw) {
        wire::Control lie;
        lie.control_arrived = UINT64_MAX;
        raw.control(lie);
    });
}

void need_immediates() {
    if (!Scene().immediates()) {
        throw Skip("the writes of this core carry no immediates");
    }
}

void test_a_data_header_where_immediates_were_agreed_on_resets() {
    need_immediates();
    expect_attack_fails([](Raw& raw) {
        wire::Control header;
        header.type = wire::Control::Type::data;
        header.argument = wire::Immediate{1, 0, false}.encode();
        raw.control(header);
    });
}

void test_an_immediate_where_headers_were_agreed_on_resets() {
    need_immediates();
    Scene scene;
    Raw raw(scene);
    raw.headers = true;
    const auto victim = scene.attack(raw);
    raw.headers = false;
    raw.data(1);
    expect_reset(scene, *victim, raw);
    scene.others_carry_on();
}

void test_a_flood_of_messages_resets() {
    // All are in order; that there are so many more than were granted is not.
    expect_attack_fails([](Raw& raw) {
        for (int i = 0; i < 5000; ++i) {
            if (raw.control({}) != 0) {
                break;
            }
        }
    });
}

void test_two_ends_reset() {
    Scene scene;
    Raw raw(scene);
    const auto victim = scene.attack(raw);
    wire::Control fin;
    fin.type = wire::Control::Type::fin;
    raw.control(fin);
    raw.control(fin);
    char byte = 0;
    EXPECT_RESULT(victim->recv_some(&byte, 1), 0);
    scene.ended(*victim);
    scene.others_carry_on();
}

// ---- what the peer gets hold of

void test_a_write_outside_the_ring_touches_nothing() {
    expect_attack_fails([](Raw& raw) { raw.write(wire::Immediate{1, 0, false}.encode(), 1, raw.peer.ring_size); });
    expect_attack_fails([](Raw& raw) {
        raw.write(wire::Immediate{64, 0, false}.encode(), 64, raw.peer.ring_size - 1);
    });
}

void test_a_write_with_another_key_touches_nothing() {
    expect_attack_fails([](Raw& raw) { raw.write(wire::Immediate{1, 0, false}.encode(), 1, 0, 1); });
}

void test_the_keys_of_two_connections_tell_nothing_of_each_other() {
    Scene scene;
    if (scene.provider_keys()) {
        throw Skip("this core chooses the keys itself");
    }
    uint64_t last = 0;
    for (int i = 0; i < 8; ++i) {
        Raw raw(scene);
        const auto victim = scene.attack(raw);
        const uint64_t distance = raw.peer.ring_key > last ? raw.peer.ring_key - last : last - raw.peer.ring_key;
        EXPECT(distance > 1024);
        last = raw.peer.ring_key;
    }
}

void test_a_peer_whose_own_ring_does_not_exist_only_harms_itself() {
    Scene scene;
    Raw raw(scene);
    auto hello = raw.hello();
    hello.ring_key ^= 0x5555;
    raw.connect(encoded(hello));
    const auto victim = scene.accept(raw);
    const auto start = Clock::now();
    ssize_t sent = 0;
    do { // the core of the peer refuses the write and ends the connection
        sent = fi_send(victim->get(), "hello", 5, nullptr, FI_ADDR_UNSPEC, nullptr);
        raw.progress();
    } while ((sent > 0 || sent == -FI_EAGAIN) && milliseconds_since(start) < patience(10000));
    EXPECT_ERROR(sent);
    scene.ended(*victim);
    scene.others_carry_on();
}

void test_credits_that_are_never_granted_stop_the_sender_and_nothing_else() {
    setenv("FI_RSTREAM_LINGER", "100", 1);
    Scene scene;
    Raw raw(scene);
    auto victim = scene.attack(raw);
    std::vector<char> bytes(1 << 20);
    ssize_t sent = 0;
    size_t total = 0;
    const auto start = Clock::now();
    while (milliseconds_since(start) < patience(300)) {
        sent = fi_send(victim->get(), bytes.data(), bytes.size(), nullptr, FI_ADDR_UNSPEC, nullptr);
        total += static_cast<size_t>(std::max<ssize_t>(sent, 0));
        raw.progress();
    }
    EXPECT_RESULT(sent, -FI_EAGAIN);
    EXPECT(total <= 65536 + victim->get_option(FI_OPT_SEND_BUF_SIZE)); // its ring and our buffer
    scene.others_carry_on();
    victim.reset(); // gives up when FI_RSTREAM_LINGER is over
    scene.others_carry_on();
    unsetenv("FI_RSTREAM_LINGER");
}

// ---- anything at all

void test_random_messages_are_survived() {
    std::mt19937 dice(20261121);
    const int rounds = core_name() == "tcp" ? 60 : 20; // elsewhere each takes its time
    for (int round = 0; round < rounds; ++round) {
        Scene scene;
        Raw raw(scene);
        const auto victim = scene.attack(raw);
        std::vector<char> bytes(4096);
        for (int i = 0; i < 40; ++i) {
            unsigned char noise[wire::Control::size];
            std::generate(std::begin(noise), std::end(noise), [&] { return static_cast<unsigned char>(dice()); });
            switch (dice() % 4) {
            case 0: // near to what is right, so that some of it gets through
                memset(noise, 0, sizeof(noise));
                noise[0] = static_cast<unsigned char>(dice() % 3 == 0 ? 16 + dice() % 3 : 1 + dice() % 4);
                noise[8 + dice() % 24] = static_cast<unsigned char>(dice() % 3);
                raw.message(noise, sizeof(noise));
                break;
            case 1:
                raw.message(noise, 1 + dice() % sizeof(noise));
                break;
            case 2:
                raw.data(1 + dice() % 70000, dice() % 16);
                break;
            default:
                raw.data(1 + dice() % 100);
                break;
            }
            (void)fi_recv(victim->get(), bytes.data(), dice() % bytes.size(), nullptr, FI_ADDR_UNSPEC, nullptr);
            (void)fi_send(victim->get(), bytes.data(), dice() % bytes.size(), nullptr, FI_ADDR_UNSPEC, nullptr);
        }
        if (dice() % 2 == 0) {
            raw.close();
        }
        Scene::exchange(scene.witness);
    }
}

} // namespace

int main() {
    show_core();
    const CMUnitTest tests[] = {
        FABTEST(test_a_hello_that_is_missing_is_refused),
        FABTEST(test_a_hello_that_is_cut_short_is_refused),
        FABTEST(test_a_hello_with_another_magic_is_refused),
        FABTEST(test_a_hello_of_another_version_is_refused),
        FABTEST(test_a_hello_with_no_ring_is_refused),
        FABTEST(test_a_hello_with_a_giant_ring_is_refused),
        FABTEST(test_a_hello_with_no_credits_is_refused),
        FABTEST(test_a_hello_that_promises_more_user_data_than_it_has_is_refused),
        FABTEST(test_an_immediate_of_no_known_form_resets),
        FABTEST(test_a_length_beyond_the_ring_resets),
        FABTEST(test_bytes_beyond_the_credit_reset),
        FABTEST(test_more_messages_than_credits_do_no_harm),
        FABTEST(test_acknowledgement_of_control_messages_that_were_not_sent_resets),
        FABTEST(test_data_behind_the_end_resets),
        FABTEST(test_a_message_of_unknown_type_resets),
        FABTEST(test_a_message_with_unknown_flags_resets),
        FABTEST(test_a_message_of_another_size_resets),
        FABTEST(test_credit_for_what_was_not_sent_resets),
        FABTEST(test_a_data_header_where_immediates_were_agreed_on_resets),
        FABTEST(test_an_immediate_where_headers_were_agreed_on_resets),
        FABTEST(test_a_flood_of_messages_resets),
        FABTEST(test_two_ends_reset),
        FABTEST(test_a_write_outside_the_ring_touches_nothing),
        FABTEST(test_a_write_with_another_key_touches_nothing),
        FABTEST(test_the_keys_of_two_connections_tell_nothing_of_each_other),
        FABTEST(test_a_peer_whose_own_ring_does_not_exist_only_harms_itself),
        FABTEST(test_credits_that_are_never_granted_stop_the_sender_and_nothing_else),
        FABTEST(test_random_messages_are_survived),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
