// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Calls that are counted while the service concludes an upgrade: the connection is in memory then, and nothing more is
// to be agreed on. request_test.sh runs it under the preload library.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <arpa/inet.h>

#include "preload/test/pair.hpp"

namespace {

using preload_test::Connected;
using preload_test::Pair;
using preload_test::path_of;

// The names at which services of this network namespace wait for the other end of a connection, see ends.cpp.
std::set<std::string> meetings() {
    std::set<std::string> names;
    std::ifstream all("/proc/net/unix");
    for (std::string line; std::getline(all, line);) {
        const size_t at = line.find("@rspreload/");
        if (at != std::string::npos && line.find('-', at) != std::string::npos) {
            names.insert(line.substr(at + strlen("@rspreload/")));
        }
    }
    return names;
}

std::string text_of(int fd, int (*ask)(int, sockaddr*, socklen_t*)) {
    sockaddr_in address{};
    socklen_t length = sizeof(address);
    EXPECT_EQ(ask(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
    std::array<char, INET_ADDRSTRLEN> text{};
    EXPECT(inet_ntop(AF_INET, &address.sin_addr, text.data(), text.size()) != nullptr);
    return std::string("::ffff:") + text.data() + "." + std::to_string(ntohs(address.sin_port));
}

bool is_negotiated(const std::set<std::string>& names, int fd) {
    const std::string own = text_of(fd, getsockname);
    const std::string peer = text_of(fd, getpeername);
    return names.count(own + "-" + peer) + names.count(peer + "-" + own) != 0;
}

// Several threads move bytes at both ends until both directions are in memory.
void exchange_until_upgraded(const Connected& pair) {
    std::atomic<bool> done{false};
    const auto move = [&](int fd) {
        std::array<char, 64> bytes{};
        while (!done) {
            constexpr int some_ms = 10;
            pollfd wanted{fd, POLLIN, 0};
            (void)send(fd, bytes.data(), 1, MSG_DONTWAIT | MSG_NOSIGNAL);
            (void)poll(&wanted, 1, some_ms); // what nobody waits for is not upgraded
            (void)recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
        }
    };
    fabtests::Threads threads;
    for (const int fd : {pair.a, pair.b, pair.a, pair.b}) {
        threads.start([&move, fd] { move(fd); });
    }
    const auto start = fabtests::Clock::now();
    bool upgraded = false;
    while (!upgraded && fabtests::milliseconds_since(start) < fabtests::patience(10000)) {
        sched_yield();
        upgraded = path_of(pair.a) == 3 && path_of(pair.b) == 3;
    }
    done = true;
    threads.join();
    EXPECT(upgraded);
}

void test_an_upgraded_connection_is_not_negotiated_again() {
    constexpr int count = 100;
    std::vector<std::unique_ptr<Connected>> pairs;
    const auto negotiated = [&] {
        const Pair later; // the service takes up requests in their order: all earlier ones have begun
        const std::set<std::string> names = meetings();
        return std::count_if(pairs.begin(), pairs.end(), [&](const auto& one) { return is_negotiated(names, one->a); });
    };
    for (int i = 0; i < count; ++i) {
        exchange_until_upgraded(*pairs.emplace_back(std::make_unique<Connected>()));
        if (i % 10 == 9) { // a negotiation without an answer lasts some seconds
            EXPECT_EQ(negotiated(), 0);
        }
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {FABTEST(test_an_upgraded_connection_is_not_negotiated_again)};
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
