// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The command lines of rping and ucmatose, and rping's wire format.
#include "fabtests/common/test.hpp"
#include "util/common/failure.hpp"
#include "util/rping/options.hpp"
#include "util/rping/wire.hpp"
#include "util/ucmatose/options.hpp"

namespace {

using Words = std::vector<std::string>;

Words with_name(const Words& words) {
    Words all{"program"};
    all.insert(all.end(), words.begin(), words.end());
    return all;
}

rping::Options ping(const Words& words) { return rping::parse_options(with_name(words)); }
ucmatose::Options mate(const Words& words) { return ucmatose::parse_options(with_name(words)); }

template <class Call> bool fails(Call call) {
    try {
        call();
        return false;
    } catch (const util::Failure&) {
        return true;
    }
}

void test_rping_has_the_defaults_of_its_manual() {
    const rping::Options o = ping({"-s"});
    EXPECT(o.server && !o.persistent && !o.verbose && !o.validate && !o.debug && !o.own_queues);
    EXPECT_EQ(o.port, 7174);
    EXPECT_EQ(o.count, 0U);
    EXPECT_EQ(o.size, 100U);
    EXPECT(!o.size_given);
    EXPECT_EQ(o.common.timeout, 60U);
    EXPECT(o.common.backend == util::BackendChoice::automatic);
}

void test_rping_takes_every_option() {
    const rping::Options c =
        ping({"-c", "-a", "host", "-I", "10.0.0.1", "-p", "1", "-vVd", "-C5", "-S", "200", "-q", "--timeout", "7"});
    EXPECT(!c.server && c.verbose && c.validate && c.debug && c.own_queues && c.size_given);
    EXPECT_EQ(c.address, std::string("host"));
    EXPECT_EQ(c.source, std::string("10.0.0.1"));
    EXPECT_EQ(c.port, 1);
    EXPECT_EQ(c.count, 5U);
    EXPECT_EQ(c.size, 200U);
    EXPECT_EQ(c.common.timeout, 7U);
    const rping::Options s = ping({"-sP", "--json", "--backend", "rdmacm"});
    EXPECT(s.server && s.persistent && s.common.json);
    EXPECT(s.common.backend == util::BackendChoice::rdmacm);
    const rping::Options longs = ping({"--client", "--address=h", "--source=i", "--port=2", "--verbose", "--validate",
                                       "--debug", "--count=3", "--size=1K", "--own-queues", "--provider=tcp"});
    EXPECT(!longs.server && longs.verbose && longs.validate && longs.debug && longs.own_queues);
    EXPECT_EQ(longs.size, 1024U);
    EXPECT(longs.common.backend == util::BackendChoice::fabric);
}

void test_rping_refuses_what_makes_no_sense() {
    const Words cases[] = {{},
                           {"-s", "-c", "-a", "h"},
                           {"-c"},
                           {"-c", "-a", "h", "-P"},
                           {"-c", "-a", "h", "-p", "0"},
                           {"-s", "-I", "h"},
                           {"-s", "-S", "22"},
                           {"-s", "-S", "67108865"},
                           {"-s", "-C", "2147483648"},
                           {"-s", "word"},
                           {"-s", "-Z"},
                           {"-s", "-S"},
                           {"-s", "--timeout", "-1"}};
    for (const auto& words : cases) {
        EXPECT(fails([&] { ping(words); }));
    }
    EXPECT(ping({"-h"}).common.help);
    EXPECT(ping({"--version"}).common.version);
}

void test_ucmatose_has_the_defaults_of_its_manual() {
    const ucmatose::Options o = mate({});
    EXPECT(!o.is_client() && !o.migrate && !o.path.ib_port_space && !o.path.type_of_service && !o.path.ack_timeout);
    EXPECT_EQ(o.port, 7471);
    EXPECT_EQ(o.connections, 1U);
    EXPECT_EQ(o.count, 10U);
    EXPECT_EQ(o.size, 100U);
    EXPECT(o.format == util::AddressFormat::any);
}

void test_ucmatose_takes_every_option() {
    const ucmatose::Options o = mate({"-s", "host", "-b", "me", "-f", "IPv6", "-P",  "ib", "-p", "9",  "-c",
                                      "4",  "-C",   "0",  "-S", "2K", "-t",   "255", "-a", "0",  "-m", "--json"});
    EXPECT(o.is_client() && o.migrate && o.path.ib_port_space && o.common.json);
    EXPECT(o.format == util::AddressFormat::ipv6);
    EXPECT_EQ(o.connections, 4U);
    EXPECT_EQ(o.count, 0U);
    EXPECT_EQ(o.size, 2048U);
    EXPECT_EQ(*o.path.type_of_service, 255);
    EXPECT_EQ(*o.path.ack_timeout, 0);
    for (const char* format : {"name", "ip", "ipv6", "gid"}) {
        EXPECT(!fails([&] { mate({"-s", "h", "-f", format}); }));
    }
    EXPECT(!mate({"-P", "TCP"}).path.ib_port_space);
}

void test_ucmatose_refuses_what_makes_no_sense() {
    const Words cases[] = {{"-c", "0"},  {"-S", "0"}, {"-C", "x"},  {"-f", "i"}, {"-P", "i"}, {"-s", ""},
                           {"-t", "1"},  {"word"},    {"-a", "32"}, {"-Z"},      {"-s"},      {"-s", "h", "-p", "0"},
                           {"-c", "1.5"}};
    for (const auto& words : cases) {
        EXPECT(fails([&] { mate(words); }));
    }
}

void test_an_advertisement_is_sixteen_bytes_in_network_order() {
    const rping::Advertisement a{0x0102030405060708, 0x090a0b0c, 0x0d0e0f10};
    const auto bytes = a.encode();
    for (size_t i = 0; i < bytes.size(); ++i) {
        EXPECT_EQ(static_cast<size_t>(bytes[i]), i + 1);
    }
    EXPECT(rping::Advertisement::decode(bytes) == a);
}

std::string filled(uint64_t n, size_t size) {
    std::vector<std::byte> data(size, std::byte{0xff});
    rping::fill_ping(data, n);
    EXPECT_EQ(static_cast<int>(data.back()), 0);
    EXPECT_EQ(rping::first_difference(data, n), size);
    return rping::ping_text(data);
}

void test_the_data_of_a_ping_is_that_of_rdma_core() {
    EXPECT_EQ(filled(0, 23), std::string("rdma-ping-0: ABCDEFGHI"));
    EXPECT_EQ(filled(1, 23), std::string("rdma-ping-1: BCDEFGHIJ"));
    EXPECT_EQ(filled(57, 23), std::string("rdma-ping-57: zABCDEFG"));
    EXPECT_EQ(filled(58, 23), std::string("rdma-ping-58: ABCDEFGH"));
    EXPECT_EQ(filled(2147483647, 23), std::string("rdma-ping-2147483647: "));
    EXPECT_EQ(filled(0, 13 + 58 + 3), "rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyzAB");
}

void test_a_single_wrong_byte_is_found() {
    std::vector<std::byte> data(200);
    rping::fill_ping(data, 3);
    for (size_t i = 0; i < data.size(); ++i) {
        data[i] ^= std::byte{1};
        EXPECT_EQ(rping::first_difference(data, 3), i);
        data[i] ^= std::byte{1};
    }
    EXPECT(rping::first_difference(data, 4) < data.size());
}

void test_text_without_an_end_ends_with_the_data() {
    const std::vector<std::byte> data(10, std::byte{'x'});
    EXPECT_EQ(rping::ping_text(data), std::string(10, 'x'));
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_rping_has_the_defaults_of_its_manual),
        FABTEST(test_rping_takes_every_option),
        FABTEST(test_rping_refuses_what_makes_no_sense),
        FABTEST(test_ucmatose_has_the_defaults_of_its_manual),
        FABTEST(test_ucmatose_takes_every_option),
        FABTEST(test_ucmatose_refuses_what_makes_no_sense),
        FABTEST(test_an_advertisement_is_sixteen_bytes_in_network_order),
        FABTEST(test_the_data_of_a_ping_is_that_of_rdma_core),
        FABTEST(test_a_single_wrong_byte_is_found),
        FABTEST(test_text_without_an_end_ends_with_the_data),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("options", tests, nullptr, nullptr);
}
