// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// How often libfabric is asked for the device and address of a destination: this program's own fi_getinfo counts.
#include <atomic>
#include <cstring>

#include <dlfcn.h>
#include <rdma/fabric.h>

#include "rsockets/test/sockets.hpp"

namespace {
std::atomic<int> asked{0}; // for streams to an address
}

extern "C" __attribute__((visibility("default"))) int fi_getinfo(uint32_t version, const char* node,
                                                                 const char* service, uint64_t flags,
                                                                 const fi_info* hints, fi_info** info) {
    using Function = int (*)(uint32_t, const char*, const char*, uint64_t, const fi_info*, fi_info**);
    static const auto real = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "fi_getinfo"));
    const bool ours = hints != nullptr && hints->fabric_attr != nullptr && hints->fabric_attr->prov_name != nullptr &&
                      strcmp(hints->fabric_attr->prov_name, "rstream") == 0;
    asked += ours && hints->dest_addr != nullptr ? 1 : 0;
    return real(version, node, service, flags, hints, info);
}

namespace {

using namespace fabtests;
using namespace rsocket_test;

void test_connecting_in_a_row_asks_libfabric_once_a_second() {
    const Number from = listener();
    const uint16_t port = port_of(from);
    const auto start = Clock::now();
    constexpr int connections = 10;
    const int before = asked;
    for (int i = 0; i < connections; ++i) {
        const Number client = connected_to(port);
        const Number server(raccept(from, nullptr, nullptr));
        send_all(client, "x");
        EXPECT_EQ(received(server, 1), "x");
    }
    EXPECT(asked > before);
    EXPECT(asked - before <= 1 + milliseconds_since(start) / 1000);
}

void test_a_cached_result_serves_every_port() {
    const Number one = listener();
    const Number other = listener();
    const Number to_one = connected_to(port_of(one));
    const Number to_other = connected_to(port_of(other));
    const Number at_one(raccept(one, nullptr, nullptr));
    const Number at_other(raccept(other, nullptr, nullptr));
    send_all(to_one, "1");
    send_all(to_other, "2");
    EXPECT_EQ(received(at_one, 1), "1");
    EXPECT_EQ(received(at_other, 1), "2");
}

void test_after_a_failed_connect_libfabric_is_asked_again() {
    Number from = listener();
    const uint16_t port = port_of(from);
    (void)connected_to(port);
    from.close();
    const Number refused(rsocket(AF_INET, SOCK_STREAM, 0));
    const sockaddr_in to = loopback(port);
    EXPECT_EQ(rconnect(refused, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), -1);
    const int before = asked;
    const Number again = listener();
    (void)connected_to(port_of(again));
    EXPECT_EQ(asked - before, 1);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_connecting_in_a_row_asks_libfabric_once_a_second),
        FABTEST(test_a_cached_result_serves_every_port),
        FABTEST(test_after_a_failed_connect_libfabric_is_asked_again),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
