// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Keepalive and TCP_USER_TIMEOUT over the tcp core: what the kernel's socket below a connection is set to. Processes
// are this program started anew in a role.
#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <rdma/rsocket.h>

#include "fabtests/common/child.hpp"
#include "fabtests/common/streams.hpp"
#include "fabtests/common/test.hpp"
#include "rsockets/test/fork.hpp"
#include "rsockets/test/sockets.hpp"

namespace {

using namespace fabtests;
using namespace rsocket_test;

int option(int fd, int level, int name) {
    int value = -1;
    socklen_t length = sizeof(value);
    EXPECT_EQ(rgetsockopt(fd, level, name, &value, &length), 0);
    return value;
}

// What the tcp core's own socket under a connection was set to.
class Below {
  public:
    explicit Below(int fd) {
        const char* core = getenv("FABTESTS_CORE");
        if (core != nullptr && core != std::string("tcp")) {
            throw Skip("there is no socket of the kernel's below");
        }
        const auto same = [fd](int one, auto ours, auto kernels) {
            sockaddr_in wanted{};
            sockaddr_in found{};
            socklen_t length = sizeof(wanted);
            socklen_t found_length = sizeof(found);
            return ours(fd, reinterpret_cast<sockaddr*>(&wanted), &length) == 0 &&
                   kernels(one, reinterpret_cast<sockaddr*>(&found), &found_length) == 0 &&
                   found.sin_port == wanted.sin_port && found.sin_addr.s_addr == wanted.sin_addr.s_addr;
        };
        for (int one = 0; one < 4096 && fd_ < 0; ++one) {
            if (same(one, rgetsockname, getsockname) && same(one, rgetpeername, getpeername)) {
                fd_ = one;
            }
        }
        EXPECT(fd_ >= 0);
    }
    // on, idle, interval, count, timeout
    [[nodiscard]] std::string text() const {
        return std::to_string(get(SOL_SOCKET, SO_KEEPALIVE)) + " " + std::to_string(get(IPPROTO_TCP, TCP_KEEPIDLE)) +
               " " + std::to_string(get(IPPROTO_TCP, TCP_KEEPINTVL)) + " " +
               std::to_string(get(IPPROTO_TCP, TCP_KEEPCNT)) + " " + std::to_string(get(IPPROTO_TCP, TCP_USER_TIMEOUT));
    }
    [[nodiscard]] bool on() const { return get(SOL_SOCKET, SO_KEEPALIVE) != 0; }

  private:
    [[nodiscard]] int get(int level, int name) const {
        int value = -1;
        socklen_t length = sizeof(value);
        EXPECT_EQ(getsockopt(fd_, level, name, &value, &length), 0);
        return value;
    }
    int fd_ = -1;
};

void set(int fd, int level, int name, int value) { EXPECT_EQ(rsetsockopt(fd, level, name, &value, sizeof(value)), 0); }

void keep_alive(int fd, int idle, int interval, int count) {
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE, idle);
    set(fd, IPPROTO_TCP, TCP_KEEPINTVL, interval);
    set(fd, IPPROTO_TCP, TCP_KEEPCNT, count);
    set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
}

void test_keepalive_is_in_force_from_connecting_on() {
    const Number from = listener();
    keep_alive(from, 50, 6, 7);
    const Number client(rsocket(AF_INET, SOCK_STREAM, 0));
    keep_alive(client, 40, 3, 5);
    const sockaddr_in to = loopback(port_of(from));
    EXPECT_EQ(rconnect(client, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    const Number server(raccept(from, nullptr, nullptr));
    EXPECT_EQ(Below(client).text(), "1 40 3 5 55000");
    EXPECT_EQ(Below(server).text(), "1 50 6 7 92000"); // as its listener
    EXPECT_EQ(option(server, IPPROTO_TCP, TCP_KEEPIDLE), 50);
    EXPECT_EQ(option(server, IPPROTO_TCP, TCP_USER_TIMEOUT), 0); // that of the core's is its own
}

void test_keepalive_may_be_set_while_connected() {
    const Ends ends = connected();
    const Below below(ends.client);
    EXPECT(!below.on());
    keep_alive(ends.client, 20, 2, 3);
    EXPECT_EQ(below.text(), "1 20 2 3 26000");
    set(ends.client, IPPROTO_TCP, TCP_KEEPIDLE, 30);
    EXPECT_EQ(below.text(), "1 30 2 3 36000");
    set(ends.client, SOL_SOCKET, SO_KEEPALIVE, 0);
    EXPECT(!below.on());
    EXPECT(!Below(ends.server).on());
}

void test_a_user_timeout_ends_keepalives_questions() {
    const Ends ends = connected();
    const Below below(ends.client);
    keep_alive(ends.client, 20, 5, 9);
    set(ends.client, IPPROTO_TCP, TCP_USER_TIMEOUT, 31000);
    EXPECT_EQ(below.text(), "1 20 5 3 31000"); // the third question is the first one after it
    EXPECT_EQ(option(ends.client, IPPROTO_TCP, TCP_KEEPCNT), 9);
    set(ends.client, IPPROTO_TCP, TCP_USER_TIMEOUT, 0);
    EXPECT_EQ(below.text(), "1 20 5 9 65000");
}

void test_a_user_timeout_alone_asks_no_idle_peer() {
    const Ends ends = connected();
    set(ends.client, IPPROTO_TCP, TCP_USER_TIMEOUT, 8000);
    const Below below(ends.client);
    EXPECT(!below.on());
    EXPECT(below.text().ends_with(" 8000"));
    set(ends.client, IPPROTO_TCP, TCP_USER_TIMEOUT, 0);
    EXPECT(!below.on());
    EXPECT(below.text().ends_with(" 0"));
}

void test_keepalive_of_the_environment_holds_where_the_program_says_nothing() {
    run_in_child("has_the_environments_keepalive", {"FI_RSTREAM_KEEPALIVE_IDLE=70000"});
}

void role_has_the_environments_keepalive(const std::vector<std::string>&) {
    const Ends ends = connected();
    EXPECT(Below(ends.client).on());
    set(ends.client, SOL_SOCKET, SO_KEEPALIVE, 0);
    EXPECT(!Below(ends.client).on());
    EXPECT(Below(ends.server).on());
}

} // namespace

int main(int argc, char** argv) {
    const Role roles[] = {{"has_the_environments_keepalive", role_has_the_environments_keepalive}};
    if (const auto status = play_role(argc, argv, roles)) {
        return *status;
    }
    const CMUnitTest tests[] = {
        FABTEST(test_keepalive_is_in_force_from_connecting_on),
        FABTEST(test_keepalive_may_be_set_while_connected),
        FABTEST(test_a_user_timeout_ends_keepalives_questions),
        FABTEST(test_a_user_timeout_alone_asks_no_idle_peer),
        FABTEST(test_keepalive_of_the_environment_holds_where_the_program_says_nothing),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
