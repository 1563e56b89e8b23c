// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// How a link (fabric/link.hpp) meets its far end.
#include "preload/test/link_host.hpp"

namespace {

// The program's service then tries no other connection of that address.
void test_an_address_of_no_device_is_told() {
    for (const int error : {ENODEV, EADDRNOTAVAIL}) {
        listening_fails = error;
        const Host host;
        EXPECT(host.link.is_over());
        EXPECT_EQ(host.owner.told, Control::failed);
        EXPECT(host.owner.reason == preload::Reason::no_device);
    }
    listening_fails = 0;
}

// By a socket of the fabric's, or over the tcp core by one of the kernel's that does not share it.
void test_a_port_that_is_taken_is_told() {
    listening_fails = EADDRINUSE;
    const Host host;
    EXPECT(host.link.is_over());
    EXPECT(host.owner.reason == preload::Reason::port_taken);
    listening_fails = 0;
}

// Before both ends have met, nobody but the program can go on with it.
void test_a_link_ends_with_its_program_while_it_listens() {
    Host host;
    host.link.progress();
    EXPECT(!host.link.is_over());
    host.link.abandon();
    host.link.progress();
    EXPECT(host.link.is_over());
}

constexpr HostAddress host_address(uint8_t last) { return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last}; }
constexpr preload::rendezvous::Address own_end{host_address(1), 40000};
constexpr preload::rendezvous::Address far_end{host_address(2), 80};
constexpr preload::rendezvous::Address other_end{host_address(3), 80};

// A link of a host whose far end was proved before, and has told of another device.
class WithOthers : public Host {
  public:
    explicit WithOthers(uint32_t accepted) : Host(between(accepted), told()) {}

  private:
    static Control between(uint32_t accepted) {
        Control made = task();
        made.accepted = accepted;
        made.ends = {own_end, far_end};
        return made;
    }
    static Owner told() {
        Owner made;
        Owner::own_devices = {own_end, {host_address(4), 0}};
        made.devices.note_proved(far_end, {other_end.bytes}, nullptr, 1);
        return made;
    }
};

bool said(Kind kind, OtherAddresses* others = nullptr) {
    Header header;
    for (size_t at = 0; at + sizeof(header) <= to_far_end.size(); at += sizeof(header) + header.bytes) {
        memcpy(&header, to_far_end.data() + at, sizeof(header));
        if (header.kind == kind) {
            if (others != nullptr) {
                EXPECT_EQ(header.bytes, sizeof(*others));
                memcpy(others, to_far_end.data() + at + sizeof(header), sizeof(*others));
            }
            return true;
        }
    }
    return false;
}

void test_a_host_without_its_device_connects_by_another() {
    connecting_fails = {ENODEV};
    WithOthers host(1);
    EXPECT_EQ(connected_to.size(), 2U);
    EXPECT(connected_to[0] == far_end && connected_to[1] == other_end);
    EXPECT(!connects_from_own);
    to_far_end.clear();
    host.link.on_event(EPOLLOUT, host.now);
    EXPECT(said(Kind::hello));
}

void test_a_far_end_that_does_not_answer_is_reached_by_another_device() {
    WithOthers host(1);
    EXPECT_EQ(connected_to.size(), 1U);
    EXPECT(connects_from_own);
    host.link.on_time(host.link.deadline());
    EXPECT_EQ(connected_to.size(), 2U);
    EXPECT(!host.link.is_over());
    host.link.on_time(host.link.deadline());
    EXPECT_EQ(connected_to.size(), 2U);
    EXPECT(host.link.is_over());
    EXPECT(host.owner.reason == preload::Reason::no_peer);
}

// It may not listen yet: the same one again, as long as there is time.
void test_a_far_end_that_refuses_is_tried_again_by_the_same_device() {
    connecting_fails = {ECONNREFUSED};
    WithOthers host(1);
    host.link.on_time(host.link.deadline());
    EXPECT_EQ(connected_to.size(), 2U);
    EXPECT(connected_to[1] == far_end);
}

void test_the_first_failure_is_told() {
    connecting_fails = {EHOSTUNREACH, ENODEV};
    const WithOthers host(1);
    EXPECT(host.link.is_over());
    EXPECT(host.owner.reason == preload::Reason::no_peer);
}

void test_a_far_end_may_come_by_another_device() {
    WithOthers host(0);
    EXPECT_EQ(listened_at.size(), 2U);
    EXPECT(listened_at[0] == own_end);
    EXPECT(listened_at[1].bytes == host_address(4) && listened_at[1].port == own_end.port);
    to_far_end.clear();
    comes_from = {host_address(9), 1};
    host.link.on_event(EPOLLIN, host.now);
    EXPECT(to_far_end.empty());
    comes_from = {other_end.bytes, 1};
    host.link.on_event(EPOLLIN, host.now);
    EXPECT(said(Kind::hello));
}

void test_ends_that_are_proved_tell_each_other_of_their_devices() {
    WithOthers host(0);
    comes_from = far_end;
    host.far_others = {host_address(7)};
    to_far_end.clear();
    host.move();
    OtherAddresses told{};
    EXPECT(said(Kind::proved, &told));
    EXPECT(told == OtherAddresses{host_address(4)});
    EXPECT(host.owner.devices.is_of({host_address(7), 1}, far_end));
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_a_host_without_its_device_connects_by_another),
        FABTEST(test_a_far_end_that_does_not_answer_is_reached_by_another_device),
        FABTEST(test_a_far_end_that_refuses_is_tried_again_by_the_same_device),
        FABTEST(test_the_first_failure_is_told),
        FABTEST(test_a_far_end_may_come_by_another_device),
        FABTEST(test_ends_that_are_proved_tell_each_other_of_their_devices),
        FABTEST(test_an_address_of_no_device_is_told),
        FABTEST(test_a_port_that_is_taken_is_told),
        FABTEST(test_a_link_ends_with_its_program_while_it_listens),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
