// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What rping and ucmatose have in common: numbers, addresses, statistics, hellos, JSON.
#include <cmath>
#include <limits>
#include <random>

#include "fabtests/common/test.hpp"
#include "util/common/address.hpp"
#include "util/common/failure.hpp"
#include "util/common/hello.hpp"
#include "util/common/histogram.hpp"
#include "util/common/json.hpp"
#include "util/common/number.hpp"

namespace {

using namespace util;

template <class Call> std::string failure_of(Call call) {
    try {
        call();
    } catch (const Failure& failure) {
        return failure.what();
    }
    return "no failure";
}

void test_numbers_are_decimal_and_within_their_limits() {
    EXPECT_EQ(parse_number("-C", "0", 0, 10), 0U);
    EXPECT_EQ(parse_number("-C", "10", 0, 10), 10U);
    EXPECT_EQ(parse_number("-C", "18446744073709551615", 0, ~uint64_t{0}), ~uint64_t{0});
    for (const char* bad : {"", " 1", "1 ", "+1", "-1", "0x1", "1e3", "ten", "11", "18446744073709551616", "1K"}) {
        EXPECT(failure_of([&] { parse_number("-C", bad, 0, 10); }).starts_with("-C "));
    }
    EXPECT_EQ(failure_of([] { parse_number("-S", "0", 1, 64); }), std::string("-S 0: not a number from 1 to 64"));
}

void test_suffixes_multiply_and_do_not_overflow() {
    EXPECT_EQ(parse_number("-S", "3k", 0, 1 << 20, true), 3072U);
    EXPECT_EQ(parse_number("-S", "1M", 0, 1 << 20, true), 1U << 20);
    EXPECT_EQ(parse_number("-S", "2G", 0, ~uint64_t{0}, true), uint64_t{2} << 30);
    for (const char* bad : {"2M", "K", "1KK", "1X", "17592186044416M"}) {
        EXPECT(failure_of([&] { parse_number("-S", bad, 0, 1 << 20, true); }) != "no failure");
    }
}

void test_addresses_have_host_port_and_kind() {
    const Address four = resolve_address("-a", "127.0.0.1", 7174);
    EXPECT_EQ(four.text(), std::string("127.0.0.1:7174"));
    EXPECT_EQ(four.family(), AF_INET);
    EXPECT(!four.is_wildcard());
    EXPECT(four.is_loopback() && resolve_address("-a", "127.8.9.1", 0).is_loopback());
    EXPECT(resolve_address("-a", "::1", 0).is_loopback() && !resolve_address("-a", "192.0.2.1", 0).is_loopback());
    EXPECT(resolve_address("-a", "0.0.0.0", 0).is_wildcard());
    const Address six = resolve_address("-a", "::1", 1);
    EXPECT_EQ(six.text(), std::string("[::1]:1"));
    EXPECT_EQ(six.port(), 1U);
    EXPECT(resolve_address("-a", "::0", 0).is_wildcard());
    EXPECT(Address().text().find("unknown") != std::string::npos);
}

void test_a_format_excludes_the_others() {
    EXPECT_EQ(resolve_address("-s", "127.0.0.1", 1, AddressFormat::ip).family(), AF_INET);
    EXPECT_EQ(resolve_address("-s", "::1", 1, AddressFormat::ipv6).family(), AF_INET6);
    EXPECT(failure_of([] { resolve_address("-s", "::1", 1, AddressFormat::ip); }).starts_with("-s ::1: not an IPv4"));
    EXPECT(failure_of([] { resolve_address("-s", "localhost", 1, AddressFormat::ip); }).starts_with("-s localhost: "));
    EXPECT(failure_of([] { resolve_address("-s", "1.2.3.4", 1, AddressFormat::ipv6); }).starts_with("-s 1.2.3.4: "));
    EXPECT(failure_of([] { resolve_address("-I", "::1", 1, AddressFormat::any, AF_INET); }).starts_with("-I ::1: "));
    EXPECT(failure_of([] { resolve_address("-a", "", 1); }).starts_with("-a ''"));
}

// On many machines, localhost is ::1 first.
void test_a_local_address_chooses_the_family_of_a_named_server() {
    EXPECT_EQ(server_family("localhost", "127.0.0.1"), AF_INET);
    EXPECT_EQ(server_family("localhost", "::1"), AF_INET6);
    EXPECT_EQ(server_family("localhost", ""), AF_UNSPEC);
    EXPECT_EQ(server_family("localhost", "a.name"), AF_UNSPEC);
    EXPECT_EQ(server_family("::1", "127.0.0.1"), AF_UNSPEC); // the complaint is about the local address
}

void test_a_gid_is_sixteen_bytes() {
    const Address gid = resolve_address("-s", "fe80::2:c903:0:1", 7471, AddressFormat::gid);
    EXPECT(gid.is_gid());
    EXPECT_EQ(gid.port(), 7471U);
    EXPECT_EQ(gid.text(), std::string("[fe80::2:c903:0:1]:7471"));
    EXPECT(failure_of([] { resolve_address("-s", "10.0.0.1", 1, AddressFormat::gid); }).find("not a GID") !=
           std::string::npos);
}

void test_a_histogram_of_nothing_is_zero() {
    const Histogram none;
    EXPECT_EQ(none.count(), 0U);
    EXPECT_EQ(none.min(), 0U);
    EXPECT_EQ(none.max(), 0U);
    EXPECT_EQ(none.percentile(50), 0U);
    EXPECT_EQ(none.mean(), 0.0);
}

void test_small_values_are_exact() {
    Histogram h;
    for (uint64_t i = 1; i <= 60; ++i) {
        h.record(i);
    }
    EXPECT_EQ(h.percentile(50), 30U);
    EXPECT_EQ(h.percentile(100), 60U);
    EXPECT_EQ(h.percentile(0), 1U);
    EXPECT_EQ(h.min(), 1U);
    EXPECT_EQ(h.max(), 60U);
    EXPECT_EQ(h.mean(), 30.5);
}

void test_percentiles_are_right_to_three_percent() {
    Histogram h;
    std::vector<uint64_t> values;
    std::mt19937_64 random(7); // NOLINT(cert-msc51-cpp): the same values every time
    for (int i = 0; i < 20000; ++i) {
        values.push_back(static_cast<uint64_t>(std::exp(std::uniform_real_distribution<>(0, 40)(random))));
        h.record(values.back());
    }
    std::sort(values.begin(), values.end());
    for (const double p : {1.0, 10.0, 50.0, 90.0, 99.0, 99.9}) {
        const auto exact = static_cast<double>(values[static_cast<size_t>(std::ceil(p / 100 * 20000)) - 1]);
        const auto got = static_cast<double>(h.percentile(p));
        EXPECT(got >= exact && got <= exact * 1.032 + 1);
    }
}

void test_a_histogram_takes_every_value() {
    Histogram h;
    h.record(0);
    h.record(std::numeric_limits<uint64_t>::max());
    EXPECT_EQ(h.percentile(50), 0U);
    EXPECT_EQ(h.percentile(99), std::numeric_limits<uint64_t>::max());
    Histogram other;
    other.record(5);
    h.merge(other);
    EXPECT_EQ(h.count(), 3U);
    EXPECT_EQ(h.percentile(50), 5U);
}

constexpr Magic test_magic{'t', 'e', 's', 't'};

void test_a_hello_reads_as_it_was_written() {
    const Hello hello{100, 10, 3};
    const Bytes bytes = encode_hello(test_magic, hello);
    EXPECT_EQ(bytes.size(), 17U);
    EXPECT_EQ(static_cast<int>(bytes[0]), 16);
    EXPECT(find_hello(test_magic, bytes) == hello);
}

void test_a_hello_is_found_with_padding_and_without_its_length() {
    Bytes bytes = encode_hello(test_magic, {1, 2, 3});
    bytes.resize(56); // what the CM of InfiniBand makes of it
    EXPECT(find_hello(test_magic, bytes) == (Hello{1, 2, 3}));
    bytes.erase(bytes.begin()); // what libfabric leaves
    EXPECT(find_hello(test_magic, bytes) == (Hello{1, 2, 3}));
    bytes.insert(bytes.begin(), 36, std::byte{0}); // behind a header of native InfiniBand
    EXPECT(find_hello(test_magic, bytes) == (Hello{1, 2, 3}));
}

void test_what_is_no_hello_is_not_taken_for_one() {
    EXPECT(!find_hello(test_magic, {}));
    EXPECT(!find_hello(test_magic, Bytes(56)));
    const Bytes whole = encode_hello(test_magic, {1, 2, 3});
    for (size_t length = 0; length < whole.size(); ++length) {
        EXPECT(!find_hello(test_magic, std::span(whole).first(length)));
    }
    EXPECT(!find_hello({'o', 't', 'h', 'r'}, whole));
}

void test_json_is_one_line_in_order() {
    EXPECT_EQ(json_text({{"z", "say \"hi\"\n"}, {"b", 3}, {"a", {{"f", 0.5}}}}),
              std::string(R"({"z":"say \"hi\"\n","b":3,"a":{"f":0.5}})"));
}

void test_json_is_valid_whatever_is_in_it() {
    EXPECT_EQ(json_text({{"x", std::nan("")}}), std::string(R"({"x":null})"));
    EXPECT_EQ(json_text({{"device", "a\xff"}}), std::string("{\"device\":\"a\xef\xbf\xbd\"}"));
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_numbers_are_decimal_and_within_their_limits),
        FABTEST(test_suffixes_multiply_and_do_not_overflow),
        FABTEST(test_addresses_have_host_port_and_kind),
        FABTEST(test_a_format_excludes_the_others),
        FABTEST(test_a_local_address_chooses_the_family_of_a_named_server),
        FABTEST(test_a_gid_is_sixteen_bytes),
        FABTEST(test_a_histogram_of_nothing_is_zero),
        FABTEST(test_small_values_are_exact),
        FABTEST(test_percentiles_are_right_to_three_percent),
        FABTEST(test_a_histogram_takes_every_value),
        FABTEST(test_a_hello_reads_as_it_was_written),
        FABTEST(test_a_hello_is_found_with_padding_and_without_its_length),
        FABTEST(test_what_is_no_hello_is_not_taken_for_one),
        FABTEST(test_json_is_one_line_in_order),
        FABTEST(test_json_is_valid_whatever_is_in_it),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("common", tests, nullptr, nullptr);
}
