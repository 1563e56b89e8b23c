// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The forms on the wire, each alone: what is written is read back, and whatever else comes is refused or harmless.
#include "prov/rstream/test/wire_test.hpp"

#include <array>
#include <cstring>
#include <limits>

#include "prov/rstream/wire/control.hpp"
#include "prov/rstream/wire/hello.hpp"
#include "prov/rstream/wire/immediate.hpp"
#include "prov/rstream/wire/limits.hpp"

using namespace rstream::wire;

namespace {

// ---- immediate

void test_immediate_round_trip(void**) {
    for (const uint32_t length : {1U, 2U, 4096U, Immediate::max_length - 1, Immediate::max_length}) {
        for (uint32_t acks = 0; acks <= Immediate::max_acks; ++acks) {
            for (const bool wanted : {false, true}) {
                const auto back = Immediate::decode(Immediate{length, acks, wanted}.encode());
                assert_true(back.has_value());
                assert_int_equal(back->length, length);
                assert_int_equal(back->control_acks, acks);
                assert_int_equal(back->credit_wanted, wanted);
            }
        }
    }
}

void test_short_immediate_round_trip(void**) {
    for (const uint32_t length : {1U, 2U, 4096U, Immediate::max_short_length}) {
        for (const uint32_t data_acks : {1U, 2U, 384U, Immediate::max_data_acks}) {
            for (const uint32_t acks : {0U, Immediate::max_acks}) {
                const auto back = Immediate::decode(Immediate{length, acks, true, data_acks}.encode());
                assert_true(back.has_value());
                assert_int_equal(back->length, length);
                assert_int_equal(back->control_acks, acks);
                assert_true(back->credit_wanted);
                assert_int_equal(back->data_acks, data_acks);
            }
        }
    }
}

void test_immediate_layout_is_the_documented_one(void**) {
    assert_int_equal((Immediate{1, 0, false}.encode()), 0xa0000001);
    assert_int_equal((Immediate{0x123456, 0, false}.encode()), 0xa0123456);
    assert_int_equal((Immediate{1, 15, false}.encode()), 0xaf000001);
    assert_int_equal((Immediate{1, 0, true}.encode()), 0xb0000001);
    assert_int_equal((Immediate{1, 0, false, 1}.encode()), 0xc0002001);
    assert_int_equal((Immediate{0x1234, 15, true, 0x7ff}.encode()), 0xdffff234);
}

void test_immediate_of_length_zero_is_refused(void**) {
    assert_false(Immediate::decode(0xa0000000).has_value());
    assert_false(Immediate::decode(0xbf000000).has_value());
    assert_false(Immediate::decode(0xc0002000).has_value());
}

void test_short_immediate_that_acknowledges_nothing_is_refused(void**) {
    assert_false(Immediate::decode(0xc0000001).has_value()); // there is one form of everything
}

void test_immediate_of_a_stray_write_is_refused(void**) {
    for (const uint64_t raw : {uint64_t{0}, uint64_t{1}, uint64_t{4096}, uint64_t{0xffffffff}, ~uint64_t{0}}) {
        assert_false(Immediate::decode(raw).has_value());
    }
}

void test_immediate_with_one_tag_bit_flipped_is_refused(void**) {
    for (int bit = 29; bit < 32; ++bit) {
        assert_false(Immediate::decode(Immediate{7, 3, true}.encode() ^ 1U << bit).has_value());
        assert_false(Immediate::decode(Immediate{7, 3, true, 5}.encode() ^ 1U << bit).has_value());
    }
}

void test_immediate_with_bits_beyond_the_32nd_is_refused(void**) {
    for (int bit = 32; bit < 64; ++bit) {
        assert_false(Immediate::decode(Immediate{7, 3, true}.encode() | uint64_t{1} << bit).has_value());
    }
}

void test_immediate_fields_do_not_spill_into_each_other(void**) {
    const auto back = Immediate::decode(Immediate{Immediate::max_length + 2, Immediate::max_acks + 2, false}.encode());
    assert_true(back.has_value());
    assert_int_equal(back->length, 1);
    assert_int_equal(back->control_acks, 1);
    assert_false(back->credit_wanted);
}

// ---- hello

Hello a_hello() {
    Hello hello;
    hello.features = 0xa5;
    hello.session = 0x0123456789abcdef;
    hello.ring_address = 0xfedcba9876543210;
    hello.ring_key = 0x1122334455667788;
    hello.ring_size = 0x20001;
    hello.data_credits = 0x1234;
    hello.control_credits = 16;
    hello.user_length = 0;
    return hello;
}

// A hello on the wire, with as many bytes behind it as InfiniBand would pad it with.
struct Wire {
    explicit Wire(const Hello& hello) { hello.encode(std::span<std::byte, Hello::size>(bytes.data(), Hello::size)); }
    [[nodiscard]] Hello::Error parse(Hello& hello, size_t length = Hello::size) const {
        return Hello::parse(std::span(bytes).first(length), hello);
    }
    [[nodiscard]] Hello::Error error(size_t length = Hello::size) const {
        Hello ignored;
        return parse(ignored, length);
    }

    std::array<std::byte, 56> bytes{};
};

// A macro, so that a failure names the line of the test.
#define assert_error(got, expected) assert_string_equal(to_string(got), to_string(expected))

void test_hello_round_trip(void**) {
    Hello back;
    assert_error(Wire(a_hello()).parse(back), Hello::Error::none);
    assert_true(back == a_hello());
}

void test_hello_round_trip_of_the_largest_values(void**) {
    Hello hello = a_hello();
    hello.features = 0xff;
    hello.session = hello.ring_address = hello.ring_key = std::numeric_limits<uint64_t>::max();
    hello.ring_size = max_buffer;
    hello.data_credits = max_queue;
    hello.control_credits = 255;
    hello.user_length = 16;
    Hello back;
    assert_error(Wire(hello).parse(back, 56), Hello::Error::none);
    assert_true(back == hello);
}

void test_hello_layout_is_fixed(void**) {
    const std::array<uint8_t, Hello::size> expected = {
        'M',  'S',  'T',  'r',  1,    0xa5, 0x34, 0x12, // magic, version, features, data credits
        0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01, // session
        0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe, // ring address
        0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, // ring key
        0x01, 0x00, 0x02, 0x00, 16,   0,    0,    0};   // ring size, control credits, user length, spare
    assert_memory_equal(Wire(a_hello()).bytes.data(), expected.data(), expected.size());
}

void test_hello_leaves_room_in_what_infiniband_allows(void**) { assert_true(Hello::size + 16 <= 56); }

void test_hello_padded_with_zeros_is_accepted(void**) {
    for (size_t length = Hello::size; length <= 56; ++length) {
        assert_error(Wire(a_hello()).error(length), Hello::Error::none);
    }
}

void test_hello_cut_short_is_refused(void**) {
    for (size_t length = 0; length < Hello::size; ++length) {
        assert_error(Wire(a_hello()).error(length), Hello::Error::too_short);
    }
}

void test_hello_of_another_protocol_is_refused(void**) {
    for (size_t bit = 0; bit < 32; ++bit) {
        Wire wire(a_hello());
        wire.bytes[bit / 8] ^= std::byte{1} << (bit % 8);
        assert_error(wire.error(), Hello::Error::magic);
    }
}

void test_hello_of_another_version_is_refused(void**) {
    for (unsigned version = 0; version < 256; ++version) {
        Wire wire(a_hello());
        wire.bytes[4] = static_cast<std::byte>(version);
        assert_error(wire.error(), version == protocol_version ? Hello::Error::none : Hello::Error::version);
    }
}

void test_hello_with_unknown_features_is_accepted(void**) {
    Hello hello = a_hello();
    hello.features = 0xfe;
    Hello back;
    assert_error(Wire(hello).parse(back), Hello::Error::none);
    assert_int_equal(back.features, 0xfe);
}

Hello::Error with_ring_size(uint32_t size) {
    Hello hello = a_hello();
    hello.ring_size = size;
    return Wire(hello).error();
}

void test_hello_ring_size_bounds(void**) {
    assert_error(with_ring_size(0), Hello::Error::ring_size);
    assert_error(with_ring_size(min_buffer - 1), Hello::Error::ring_size);
    assert_error(with_ring_size(min_buffer), Hello::Error::none);
    assert_error(with_ring_size(max_buffer), Hello::Error::none);
    assert_error(with_ring_size(max_buffer + 1), Hello::Error::ring_size);
    assert_error(with_ring_size(0xffffffff), Hello::Error::ring_size);
}

Hello::Error with_credits(uint16_t data, uint8_t control) {
    Hello hello = a_hello();
    hello.data_credits = data;
    hello.control_credits = control;
    return Wire(hello).error();
}

void test_hello_of_too_few_credits_is_refused(void**) {
    assert_error(with_credits(0, control_credits), Hello::Error::credits);
    assert_error(with_credits(min_queue - 1, control_credits), Hello::Error::credits);
    assert_error(with_credits(min_queue, control_credits), Hello::Error::none);
    assert_error(with_credits(384, 0), Hello::Error::credits);
    assert_error(with_credits(384, min_control_credits - 1), Hello::Error::credits);
    assert_error(with_credits(384, min_control_credits), Hello::Error::none);
}

// limits.hpp: "the bounds that both ends of a stream hold each other to".
void test_hello_of_more_data_credits_than_the_limit_is_refused(void**) {
    assert_error(with_credits(max_queue, control_credits), Hello::Error::none);
    assert_error(with_credits(max_queue + 1, control_credits), Hello::Error::credits);
}

void test_hello_user_length_must_have_come(void**) {
    Hello hello = a_hello();
    hello.user_length = 16;
    assert_error(Wire(hello).error(56), Hello::Error::none);
    assert_error(Wire(hello).error(55), Hello::Error::user_length);
    assert_error(Wire(hello).error(Hello::size), Hello::Error::user_length);
    hello.user_length = 255;
    assert_error(Wire(hello).error(56), Hello::Error::user_length);
}

void test_hello_that_is_refused_leaves_the_result_alone(void**) {
    Wire wire(a_hello());
    wire.bytes[36] = std::byte{0}; // control credits, among the last to be checked
    Hello hello;
    hello.session = 42;
    assert_error(wire.parse(hello), Hello::Error::credits);
    assert_int_equal(hello.session, 42);
}

void test_hello_with_any_bit_flipped_is_refused_or_differs(void**) {
    for (size_t bit = 0; bit < 8 * (Hello::size - 2); ++bit) { // but for the two spare bytes at the end
        Wire wire(a_hello());
        wire.bytes[bit / 8] ^= std::byte{1} << (bit % 8);
        Hello back;
        assert_false(wire.parse(back) == Hello::Error::none && back == a_hello());
    }
}

void test_every_hello_error_has_a_text(void**) {
    for (int e = 0; e <= static_cast<int>(Hello::Error::user_length); ++e) {
        assert_string_not_equal(to_string(static_cast<Hello::Error>(e)), "unknown error");
    }
    assert_string_equal(to_string(static_cast<Hello::Error>(99)), "unknown error");
}

// ---- reject

std::array<std::byte, 32> a_reject(Reject::Reason reason, uint8_t user_length) {
    std::array<std::byte, 32> bytes{};
    Reject reject;
    reject.reason = reason;
    reject.user_length = user_length;
    reject.encode(std::span<std::byte, Reject::size>(bytes.data(), Reject::size));
    return bytes;
}

void test_reject_round_trip(void**) {
    for (uint8_t reason = 0; reason <= static_cast<uint8_t>(Reject::Reason::resources); ++reason) {
        const auto back = Reject::parse(a_reject(static_cast<Reject::Reason>(reason), 24));
        assert_true(back.has_value());
        assert_int_equal(static_cast<uint8_t>(back->reason), reason);
        assert_int_equal(back->user_length, 24);
    }
}

void test_reject_cut_short_is_not_one(void**) {
    const auto bytes = a_reject(Reject::Reason::user, 0);
    for (size_t length = 0; length < Reject::size; ++length) {
        assert_false(Reject::parse(std::span(bytes).first(length)).has_value());
    }
    assert_true(Reject::parse(std::span(bytes).first(Reject::size)).has_value());
}

void test_reject_of_another_protocol_is_not_one(void**) {
    for (size_t bit = 0; bit < 32; ++bit) {
        auto bytes = a_reject(Reject::Reason::user, 0);
        bytes[bit / 8] ^= std::byte{1} << (bit % 8);
        assert_false(Reject::parse(bytes).has_value());
    }
}

void test_reject_of_another_version_is_read(void**) {
    auto bytes = a_reject(Reject::Reason::version, 0);
    bytes[4] = std::byte{77};
    const auto back = Reject::parse(bytes);
    assert_true(back.has_value());
    assert_true(back->reason == Reject::Reason::version);
}

void test_reject_for_an_unknown_reason_is_read(void**) {
    for (unsigned reason = 5; reason < 256; ++reason) {
        auto bytes = a_reject(Reject::Reason::user, 0);
        bytes[5] = static_cast<std::byte>(reason);
        const auto back = Reject::parse(bytes);
        assert_true(back.has_value());
        assert_true(back->reason == Reject::Reason::resources);
    }
}

void test_reject_user_length_must_have_come(void**) {
    const auto bytes = a_reject(Reject::Reason::user, 10);
    assert_true(Reject::parse(std::span(bytes).first(Reject::size + 10)).has_value());
    assert_false(Reject::parse(std::span(bytes).first(Reject::size + 9)).has_value());
}

void test_hello_is_no_short_reject_with_user_data_it_does_not_have(void**) {
    Wire wire(a_hello());
    const auto back = Reject::parse(wire.bytes); // the magic is shared: it must at least stay inside what came
    assert_true(!back || back->user_length <= wire.bytes.size() - Reject::size);
}

void test_every_reject_reason_has_a_text(void**) {
    for (int r = 0; r <= static_cast<int>(Reject::Reason::resources); ++r) {
        assert_string_not_equal(to_string(static_cast<Reject::Reason>(r)), "unknown reason");
    }
    assert_string_equal(to_string(static_cast<Reject::Reason>(99)), "unknown reason");
}

// ---- control

Control a_control(Control::Type type = Control::Type::fin, uint8_t flags = Control::flag_closed) {
    return {type, flags, 0xa1b2c3d4, 0x0102030405060708, 0x1112131415161718, 0x2122232425262728};
}

std::array<std::byte, Control::size> encoded(const Control& control) {
    std::array<std::byte, Control::size> bytes{};
    control.encode(bytes);
    return bytes;
}

void test_control_round_trip(void**) {
    for (const auto type : {Control::Type::credit, Control::Type::fin, Control::Type::rst, Control::Type::data}) {
        const auto back = Control::decode(encoded(a_control(type, 0)));
        assert_true(back.has_value());
        assert_true(*back == a_control(type, 0));
    }
    assert_true(Control::decode(encoded(a_control())) == a_control());
}

void test_control_round_trip_of_the_largest_values(void**) {
    constexpr uint64_t most = std::numeric_limits<uint64_t>::max();
    const Control control{Control::Type::data, 0, 0xffffffff, most, most, most};
    assert_true(Control::decode(encoded(control)) == control);
}

void test_control_layout_is_fixed(void**) {
    const std::array<uint8_t, Control::size> expected = {
        2,    1,    0,    0,    0xd4, 0xc3, 0xb2, 0xa1,  // type, flags, spare, argument
        8,    7,    6,    5,    4,    3,    2,    1,     // consumed
        0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,  // data arrived
        0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21}; // control arrived
    assert_memory_equal(encoded(a_control()).data(), expected.data(), expected.size());
}

void test_control_of_another_size_is_refused(void**) {
    std::array<std::byte, 2 * Control::size> bytes{};
    std::memcpy(bytes.data(), encoded(a_control()).data(), Control::size);
    for (size_t length = 0; length <= bytes.size(); ++length) {
        assert_int_equal(Control::decode(std::span(bytes).first(length)).has_value(), length == Control::size);
    }
}

void test_control_of_an_unknown_type_is_refused(void**) {
    for (unsigned type = 0; type < 256; ++type) {
        auto bytes = encoded(a_control(Control::Type::credit, 0));
        bytes[0] = static_cast<std::byte>(type);
        assert_int_equal(Control::decode(bytes).has_value(), (type >= 1 && type <= 4) || (type >= 16 && type <= 18));
    }
}

void test_control_with_an_unknown_flag_is_refused(void**) {
    for (unsigned flags = 0; flags < 256; ++flags) {
        auto bytes = encoded(a_control());
        bytes[1] = static_cast<std::byte>(flags);
        assert_int_equal(Control::decode(bytes).has_value(), flags <= 1);
    }
}

void test_control_closed_is_for_fin_alone(void**) {
    for (const auto type : {Control::Type::credit, Control::Type::rst, Control::Type::data}) {
        assert_false(Control::decode(encoded(a_control(type, Control::flag_closed))).has_value());
    }
}

void test_control_with_a_spare_bit_set_is_refused(void**) {
    for (size_t bit = 16; bit < 32; ++bit) {
        auto bytes = encoded(a_control());
        bytes[bit / 8] ^= std::byte{1} << (bit % 8);
        assert_false(Control::decode(bytes).has_value());
    }
}

void test_control_with_any_bit_flipped_is_refused_or_differs(void**) {
    for (size_t bit = 0; bit < 8 * Control::size; ++bit) {
        auto bytes = encoded(a_control());
        bytes[bit / 8] ^= std::byte{1} << (bit % 8);
        assert_false(Control::decode(bytes) == a_control());
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_immediate_round_trip),
        cmocka_unit_test(test_short_immediate_round_trip),
        cmocka_unit_test(test_immediate_layout_is_the_documented_one),
        cmocka_unit_test(test_immediate_of_length_zero_is_refused),
        cmocka_unit_test(test_short_immediate_that_acknowledges_nothing_is_refused),
        cmocka_unit_test(test_immediate_of_a_stray_write_is_refused),
        cmocka_unit_test(test_immediate_with_one_tag_bit_flipped_is_refused),
        cmocka_unit_test(test_immediate_with_bits_beyond_the_32nd_is_refused),
        cmocka_unit_test(test_immediate_fields_do_not_spill_into_each_other),
        cmocka_unit_test(test_hello_round_trip),
        cmocka_unit_test(test_hello_round_trip_of_the_largest_values),
        cmocka_unit_test(test_hello_layout_is_fixed),
        cmocka_unit_test(test_hello_leaves_room_in_what_infiniband_allows),
        cmocka_unit_test(test_hello_padded_with_zeros_is_accepted),
        cmocka_unit_test(test_hello_cut_short_is_refused),
        cmocka_unit_test(test_hello_of_another_protocol_is_refused),
        cmocka_unit_test(test_hello_of_another_version_is_refused),
        cmocka_unit_test(test_hello_with_unknown_features_is_accepted),
        cmocka_unit_test(test_hello_ring_size_bounds),
        cmocka_unit_test(test_hello_of_too_few_credits_is_refused),
        cmocka_unit_test(test_hello_of_more_data_credits_than_the_limit_is_refused),
        cmocka_unit_test(test_hello_user_length_must_have_come),
        cmocka_unit_test(test_hello_that_is_refused_leaves_the_result_alone),
        cmocka_unit_test(test_hello_with_any_bit_flipped_is_refused_or_differs),
        cmocka_unit_test(test_every_hello_error_has_a_text),
        cmocka_unit_test(test_reject_round_trip),
        cmocka_unit_test(test_reject_cut_short_is_not_one),
        cmocka_unit_test(test_reject_of_another_protocol_is_not_one),
        cmocka_unit_test(test_reject_of_another_version_is_read),
        cmocka_unit_test(test_reject_for_an_unknown_reason_is_read),
        cmocka_unit_test(test_reject_user_length_must_have_come),
        cmocka_unit_test(test_hello_is_no_short_reject_with_user_data_it_does_not_have),
        cmocka_unit_test(test_every_reject_reason_has_a_text),
        cmocka_unit_test(test_control_round_trip),
        cmocka_unit_test(test_control_round_trip_of_the_largest_values),
        cmocka_unit_test(test_control_layout_is_fixed),
        cmocka_unit_test(test_control_of_another_size_is_refused),
        cmocka_unit_test(test_control_of_an_unknown_type_is_refused),
        cmocka_unit_test(test_control_with_an_unknown_flag_is_refused),
        cmocka_unit_test(test_control_closed_is_for_fin_alone),
        cmocka_unit_test(test_control_with_a_spare_bit_set_is_refused),
        cmocka_unit_test(test_control_with_any_bit_flipped_is_refused_or_differs),
    };
    return RUN_TAP(tests);
}
