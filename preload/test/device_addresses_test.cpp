// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// When an address whose device is missing is asked for again, and when a worker that could not start.
#include "preload/fabric/device_addresses.hpp"

#include "fabtests/common/test.hpp" // last: cmocka has macros of plain names

namespace {

using namespace preload::fabric;
using preload::rendezvous::Address;

Address address(uint8_t last, uint16_t port = 1) {
    Address made;
    made.bytes[10] = made.bytes[11] = 0xff;
    made.bytes[12] = 10;
    made.bytes[15] = last;
    made.port = port;
    return made;
}

void test_an_address_without_a_device_is_tried_again() {
    DeviceAddresses addresses;
    constexpr uint64_t now = 77 * second_ns;
    EXPECT(!addresses.has_no_device(address(1), now));
    addresses.note_no_device(address(1), now);
    EXPECT(addresses.has_no_device(address(1, 2), now)); // whatever its port is
    EXPECT(!addresses.has_no_device(address(2), now));
    EXPECT(addresses.has_no_device(address(1), now + DeviceAddresses::asked_again_after - 1));
    EXPECT(!addresses.has_no_device(address(1), now + DeviceAddresses::asked_again_after));
    EXPECT(!addresses.had_device(address(1)));
}

void test_a_device_that_went_away_may_come_back() {
    DeviceAddresses addresses;
    addresses.note_device(address(1));
    EXPECT(addresses.had_device(address(1)));
    addresses.note_no_device(address(1), second_ns);
    EXPECT(addresses.has_no_device(address(1), second_ns));
    EXPECT(addresses.had_device(address(1)));
    addresses.note_device(address(1));
    EXPECT(!addresses.has_no_device(address(1), second_ns));
}

void test_only_the_most_recent_addresses_are_known() {
    DeviceAddresses addresses;
    for (uint8_t i = 0; i < 100; ++i) {
        addresses.note_no_device(address(i), second_ns);
        EXPECT(addresses.has_no_device(address(i), second_ns));
    }
    EXPECT(!addresses.has_no_device(address(0), second_ns));
    EXPECT(addresses.has_no_device(address(99), second_ns));
}

void test_pauses_grow_until_it_succeeds() {
    RetryPause pause;
    uint64_t now = second_ns;
    EXPECT(pause.is_over(now));
    for (uint64_t seconds : {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600}) {
        pause.note_failed(now);
        EXPECT(!pause.is_over(now + seconds * second_ns - 1));
        now += seconds * second_ns;
        EXPECT(pause.is_over(now));
    }
    pause.note_succeeded();
    EXPECT(pause.is_over(now));
    pause.note_failed(now);
    EXPECT(!pause.is_over(now + second_ns - 1));
    EXPECT(pause.is_over(now + second_ns));
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_an_address_without_a_device_is_tried_again),
        FABTEST(test_a_device_that_went_away_may_come_back),
        FABTEST(test_only_the_most_recent_addresses_are_known),
        FABTEST(test_pauses_grow_until_it_succeeds),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
