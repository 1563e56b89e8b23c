// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Sockets over a wire that is cut: what a program sees of SO_KEEPALIVE and TCP_USER_TIMEOUT. Both ends are in this
// process, on two devices; see cut_test.cpp for the environment.
#include <chrono>
#include <cstdlib>
#include <string>

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <rdma/rsocket.h>

#include "fabtests/common/test.hpp"
#include "rsockets/test/sockets.hpp"

namespace {

using namespace fabtests;
using rsocket_test::Number;

std::string need(const char* name) {
    const char* value = getenv(name);
    if (value == nullptr || *value == '\0') {
        throw Skip(std::string(name) + " is not set: this test needs a wire that it can cut");
    }
    return value;
}

void wire(const std::string& order) {
    if (system(("wire " + order + " " + need("FABTESTS_WIRE") + " >/dev/null").c_str()) != 0) {
        throw Failure("wire " + order + " fails");
    }
}

sockaddr_in address_of(const char* variable) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    EXPECT_EQ(inet_pton(AF_INET, need(variable).c_str(), &address.sin_addr), 1);
    return address;
}

const sockaddr* generic(const sockaddr_in& address) { return reinterpret_cast<const sockaddr*>(&address); }

void set(int fd, int level, int name, int value) { EXPECT_EQ(rsetsockopt(fd, level, name, &value, sizeof(value)), 0); }

struct Ends {
    Ends() {
        wire("heal");
        const Number from(rsocket(AF_INET, SOCK_STREAM, 0));
        sockaddr_in there = address_of("FABTESTS_NODE");
        EXPECT_EQ(rbind(from, generic(there), sizeof(there)), 0);
        EXPECT_EQ(rlisten(from, 1), 0);
        there.sin_port = htons(rsocket_test::port_of(from));
        client = Number(rsocket(AF_INET, SOCK_STREAM, 0));
        const sockaddr_in here = address_of("FABTESTS_CLIENT");
        EXPECT_EQ(rbind(client, generic(here), sizeof(here)), 0);
        EXPECT_EQ(rconnect(client, generic(there), sizeof(there)), 0);
        server = Number(raccept(from, nullptr, nullptr));
    }
    Ends(const Ends&) = delete;
    Ends& operator=(const Ends&) = delete;
    ~Ends() { (void)system(("wire heal " + need("FABTESTS_WIRE") + " >/dev/null").c_str()); }

    Number client;
    Number server;
};

constexpr int seconds_to_loss = 3;

void keep_alive(int fd) {
    set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPCNT, seconds_to_loss - 1);
}

class Timer {
  public:
    // For what the emulated machine adds, several times the second that the programs have otherwise.
    void check() const {
        const auto passed = std::chrono::steady_clock::now() - start_;
        EXPECT(passed <= std::chrono::seconds(seconds_to_loss) + std::chrono::milliseconds(patience(1000)));
    }

    // Nor before its time, by more than the kernel's own roundness.
    void check_that_it_is_late() const {
        EXPECT(std::chrono::steady_clock::now() - start_ >= std::chrono::milliseconds(900 * seconds_to_loss));
        check();
    }

  private:
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

int error_of(int fd) {
    int error = -1;
    socklen_t length = sizeof(error);
    EXPECT_EQ(rgetsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length), 0);
    return error;
}

void expect_loss(ssize_t got) {
    const int error = errno;
    EXPECT_EQ(got, -1);
    EXPECT_EQ(error, ETIMEDOUT);
}

void test_a_blocked_receive_ends_with_a_timeout() {
    const Ends ends;
    keep_alive(ends.client);
    wire("cut");
    const Timer timer;
    char byte = 0;
    expect_loss(rrecv(ends.client, &byte, 1, 0));
    timer.check();
    EXPECT_EQ(rrecv(ends.client, &byte, 1, 0), 0); // told once
}

void test_a_poll_sees_the_timeout() {
    const Ends ends;
    keep_alive(ends.server);
    wire("cut");
    const Timer timer;
    pollfd fd{ends.server, POLLIN, 0};
    EXPECT_EQ(rpoll(&fd, 1, 1000 * seconds_to_loss + patience(1000)), 1);
    timer.check();
    EXPECT((fd.revents & POLLERR) != 0);
    EXPECT_EQ(error_of(ends.server), ETIMEDOUT);
    EXPECT_EQ(error_of(ends.server), 0);
}

void test_a_user_timeout_ends_a_send_that_nobody_acknowledges() {
    const Ends ends;
    set(ends.client, IPPROTO_TCP, TCP_USER_TIMEOUT, 1000 * seconds_to_loss);
    wire("cut");
    const Timer timer;
    const std::string data(100000, 'x');
    ssize_t sent = 0;
    do {
        sent = rsend(ends.client, data.data(), data.size(), MSG_NOSIGNAL);
    } while (sent > 0);
    expect_loss(sent);
    timer.check_that_it_is_late();
}

// A short message, whose completion no core is asked for.
void test_a_user_timeout_ends_a_receive_behind_a_lost_request() {
    const Ends ends;
    set(ends.client, IPPROTO_TCP, TCP_USER_TIMEOUT, 1000 * seconds_to_loss);
    wire("cut");
    const Timer timer;
    EXPECT_EQ(rsend(ends.client, "request", 7, MSG_NOSIGNAL), 7);
    char byte = 0;
    expect_loss(rrecv(ends.client, &byte, 1, 0));
    timer.check_that_it_is_late();
}

// As with TCP: it is not for silence.
void test_a_user_timeout_leaves_idle_ends_alone() {
    const Ends ends;
    for (const int fd : {static_cast<int>(ends.client), static_cast<int>(ends.server)}) {
        set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 1000);
    }
    char byte = 'x';
    EXPECT_EQ(rsend(ends.client, &byte, 1, 0), 1);
    EXPECT_EQ(rrecv(ends.server, &byte, 1, 0), 1);
    pollfd fds[] = {{ends.client, POLLIN, 0}, {ends.server, POLLIN, 0}};
    EXPECT_EQ(rpoll(fds, 2, 1000), 0); // what acknowledges that byte is under way yet
    wire("cut");
    EXPECT_EQ(rpoll(fds, 2, 4000), 0);
    wire("heal");
    EXPECT_EQ(rsend(ends.client, &byte, 1, 0), 1);
    EXPECT_EQ(rrecv(ends.server, &byte, 1, 0), 1);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_a_blocked_receive_ends_with_a_timeout),
        FABTEST(test_a_poll_sees_the_timeout),
        FABTEST(test_a_user_timeout_ends_a_send_that_nobody_acknowledges),
        FABTEST(test_a_user_timeout_ends_a_receive_behind_a_lost_request),
        FABTEST(test_a_user_timeout_leaves_idle_ends_alone),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
