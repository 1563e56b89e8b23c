// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// By which devices of two hosts a stream may go.
#include "preload/fabric/other_devices.hpp"

#include "preload/fabric/fabric_socket.hpp"

#include "fabtests/common/test.hpp" // last: cmocka has macros of plain names

namespace preload::fabric {

// A core of the kernel's sockets has every address.
FabricSocket FabricSocket::listening(const rendezvous::Address&) { return FabricSocket(1000); }
void FabricSocket::close() { fd_ = -1; }

} // namespace preload::fabric

namespace {

using namespace preload::fabric;
using preload::rendezvous::Address;

constexpr HostAddress ipv4(uint8_t net, uint8_t last) {
    return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, net, 0, 0, last};
}
constexpr HostAddress ipv6(uint8_t last) { return {0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last}; }
constexpr Address own{ipv4(10, 1), 40000};
constexpr Address peer{ipv4(10, 2), 80};
constexpr uint64_t now = 1;

int looked = 0;
OtherDevices::Found devices() {
    ++looked;
    return {{ipv6(1), 0}, own, {ipv4(11, 1), 0}, {ipv4(12, 1), 0}, {ipv4(13, 1), 0}, {ipv4(14, 1), 0}};
}

void test_a_host_tells_of_three_others_of_the_same_family() {
    OtherDevices some(devices);
    EXPECT(some.of_this_host(own, now) == (OtherAddresses{ipv4(11, 1), ipv4(12, 1), ipv4(13, 1)}));
    EXPECT(some.of_this_host({ipv6(2), 1}, now) == OtherAddresses{ipv6(1)});
    EXPECT(some.of_this_host({ipv4(127, 1), 1}, now) == OtherAddresses{});
}

void test_it_looks_again_after_a_failure_and_not_each_time() {
    looked = 0;
    OtherDevices some(devices);
    constexpr uint64_t later = 3600000000000U;
    for (const uint64_t at : {now, later}) {
        (void)some.of_this_host(own, at);
        EXPECT_EQ(looked, 1);
    }
    some.note_failure();
    (void)some.of_this_host(own, later);
    EXPECT_EQ(looked, 2);
    some.note_failure();
    (void)some.of_this_host(own, later + 1);
    EXPECT_EQ(looked, 2);
    (void)some.of_this_host(own, 2 * later);
    EXPECT_EQ(looked, 3);
}

void test_addresses_that_others_cannot_reach_are_left_out() {
    for (const Address& one : OtherDevices::find_devices()) {
        constexpr HostAddress loopback{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
        EXPECT(one.bytes != loopback && one.bytes != ipv4(127, 1));
        EXPECT(one.bytes[0] != 0xfe || (one.bytes[1] & 0xc0) != 0x80);
    }
}

void test_what_a_far_end_tells_is_used_if_it_can_be() {
    OtherDevices some(devices);
    EXPECT(some.targets(peer, now) == std::vector{peer});
    EXPECT(!some.knows(peer));
    some.note_proved(peer, {ipv4(11, 2), ipv6(2), ipv4(127, 1)}, nullptr, now);
    const Address other{ipv4(11, 2), peer.port};
    EXPECT(some.knows(peer));
    EXPECT(some.targets(peer, now) == (std::vector{peer, other}));
    EXPECT(some.is_of({ipv4(11, 2), 7}, peer));
    EXPECT(some.is_of({ipv4(10, 2), 7}, peer));
    EXPECT(!some.is_of({ipv4(12, 2), 7}, peer));
    some.note_proved(peer, {}, nullptr, now);
    EXPECT(some.targets(peer, now) == std::vector{peer});
}

void test_what_has_worked_is_the_first_for_a_minute() {
    OtherDevices some(devices);
    const Address other{ipv4(12, 2), peer.port};
    some.note_proved(peer, {ipv4(11, 2), other.bytes}, &other, now);
    EXPECT(some.targets(peer, now).front() == other);
    EXPECT_EQ(some.targets(peer, now).size(), 3U);
    EXPECT(some.targets(peer, now + OtherDevices::preferred_for_ns).front() == peer);
}

void test_the_oldest_of_many_peers_is_forgotten() {
    OtherDevices some(devices);
    for (uint8_t i = 1; i <= 65; ++i) {
        some.note_proved({ipv4(20, i), 1}, {ipv4(21, i)}, nullptr, now);
    }
    EXPECT_EQ(some.targets({ipv4(20, 1), 1}, now).size(), 1U);
    EXPECT_EQ(some.targets({ipv4(20, 2), 1}, now).size(), 2U);
    EXPECT_EQ(some.targets({ipv4(20, 65), 1}, now).size(), 2U);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_a_host_tells_of_three_others_of_the_same_family),
        FABTEST(test_it_looks_again_after_a_failure_and_not_each_time),
        FABTEST(test_addresses_that_others_cannot_reach_are_left_out),
        FABTEST(test_what_a_far_end_tells_is_used_if_it_can_be),
        FABTEST(test_what_has_worked_is_the_first_for_a_minute),
        FABTEST(test_the_oldest_of_many_peers_is_forgotten),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
