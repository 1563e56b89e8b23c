// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// By which devices of two hosts a stream may go.
#include "preload/fabric/other_devices.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "preload/fabric/rdma_interfaces.hpp"

#include "fabtests/common/test.hpp" // last: cmocka has macros of plain names

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

// A folder in the place of sysfs.
class Sysfs {
  public:
    Sysfs() : root_(std::filesystem::temp_directory_path() / "sysfs.XXXXXX") {
        EXPECT(mkdtemp(root_.data()) != nullptr);
    }
    Sysfs(const Sysfs&) = delete;
    Sysfs& operator=(const Sysfs&) = delete;
    ~Sysfs() { std::filesystem::remove_all(root_); }
    void add(const std::string& file, const std::string& line) const {
        const std::filesystem::path path = root_ + "/class/" + file;
        std::filesystem::create_directories(path.parent_path());
        std::ofstream(path) << line << '\n';
    }
    [[nodiscard]] const std::string& root() const { return root_; }

  private:
    std::string root_;
};

void test_interfaces_of_each_kind_of_device_are_found() {
    const Sysfs sysfs;
    sysfs.add("infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0", "eth1");
    sysfs.add("infiniband/mlx5_0/ports/1/gid_attrs/ndevs/3", "eth1.7"); // behind a gap
    sysfs.add("infiniband/mlx5_0/ports/1/gids/0", "fe80:0000:0000:0000:0ac0:ebff:fe12:3456");
    sysfs.add("infiniband/mlx4_0/device/net/ib0/address", "");
    sysfs.add("infiniband/siw0/ports/1/gids/0", "2e28:f1e4:663a:0000:0000:0000:0000:0000");
    sysfs.add("infiniband/siw1/ports/1/gids/0", "0000:0000:0000:0000:0000:0000:0000:0000");
    sysfs.add("net/lo/address", "00:00:00:00:00:00");
    sysfs.add("net/eth2/address", "2e:28:f1:e4:66:3a");
    sysfs.add("net/eth3/address", "2e:28:f1:e4:66:3b");
    const RdmaInterfaces some(sysfs.root());
    for (const char* interface : {"eth1", "eth1.7", "ib0", "eth2"}) {
        EXPECT(some.has(interface));
    }
    for (const char* interface : {"eth3", "eth4", "lo"}) {
        EXPECT(!some.has(interface));
    }
    EXPECT(!RdmaInterfaces(sysfs.root() + "/nowhere").has("eth1"));
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
        FABTEST(test_interfaces_of_each_kind_of_device_are_found),
        FABTEST(test_what_a_far_end_tells_is_used_if_it_can_be),
        FABTEST(test_what_has_worked_is_the_first_for_a_minute),
        FABTEST(test_the_oldest_of_many_peers_is_forgotten),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
