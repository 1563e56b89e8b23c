// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Which of the kernel's sockets below a listener are ended before it goes: those that nobody has read from.
#include "prov/rstream/kernel_sockets.hpp"

#include <array>
#include <cstring>
#include <string>

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fabtests/common/test.hpp"

namespace {

using namespace fabtests;

class Number {
  public:
    explicit Number(int fd) : fd_(fd) { EXPECT(fd >= 0); }
    ~Number() { close(); }
    Number(const Number&) = delete;
    Number& operator=(const Number&) = delete;
    operator int() const { return fd_; } // NOLINT(google-explicit-constructor): it stands for the number
    void close() {
        if (fd_ >= 0) {
            ::close(fd_);
        }
        fd_ = -1;
    }

  private:
    int fd_;
};

// A listener, a visitor of it, and the socket that was accepted.
struct Visit {
    Visit() {
        sockaddr_in loopback{};
        loopback.sin_family = AF_INET;
        loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        memcpy(&name, &loopback, sizeof(loopback));
        socklen_t length = sizeof(loopback);
        EXPECT_EQ(bind(listener, address(), length), 0);
        EXPECT_EQ(listen(listener, 1), 0);
        EXPECT_EQ(getsockname(listener, address(), &length), 0);
        EXPECT_EQ(connect(visitor, address(), length), 0);
        accepted = accept(listener, nullptr, nullptr);
    }
    ~Visit() { ::close(accepted); }
    sockaddr* address() { return reinterpret_cast<sockaddr*>(&name); }
    void say(const std::string& text) const {
        EXPECT_EQ(send(visitor, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
    }
    void await_something() const {
        pollfd one{accepted, POLLIN | POLLRDHUP, 0};
        EXPECT_EQ(poll(&one, 1, 10000), 1);
    }
    void await_the_end() const {
        pollfd one{accepted, POLLRDHUP, 0};
        EXPECT_EQ(poll(&one, 1, 10000), 1);
    }
    size_t end(size_t least = 0) { return rstream::end_unread_visitors(*address(), least); }
    // What whoever owns the accepted socket would read now.
    [[nodiscard]] ssize_t read_some() const {
        std::array<char, 16> bytes{};
        return recv(accepted, bytes.data(), bytes.size(), MSG_DONTWAIT);
    }

    sockaddr_storage name{};
    Number listener{socket(AF_INET, SOCK_STREAM, 0)};
    Number visitor{socket(AF_INET, SOCK_STREAM, 0)};
    int accepted = -1;
};

void test_who_has_said_nothing_is_ended() {
    Visit visit;
    EXPECT_EQ(visit.end(), 1U);
    EXPECT_EQ(visit.read_some(), 0);
    EXPECT_EQ(visit.end(), 0U);
}

void test_who_was_read_from_a_little_is_ended_too() {
    Visit visit;
    visit.say(std::string(100, 'x'));
    visit.await_something();
    EXPECT_EQ(visit.read_some(), 16);
    EXPECT_EQ(visit.end(15), 0U);
    EXPECT_EQ(visit.end(16), 1U);
    EXPECT_EQ(visit.read_some(), 0);
}

void test_what_was_said_and_not_read_is_not_read_any_more() {
    Visit visit;
    visit.say(std::string(10000, 'x'));
    visit.await_something();
    EXPECT_EQ(visit.end(), 1U);
    EXPECT_EQ(visit.read_some(), 0);
    EXPECT_EQ(visit.end(), 0U);
}

void test_who_has_gone_without_being_read_is_ended() {
    for (const std::string& said : {std::string(), std::string("a request")}) {
        Visit visit;
        if (!said.empty()) {
            visit.say(said);
        }
        visit.visitor.close();
        visit.await_the_end();
        EXPECT_EQ(visit.end(), 1U);
        EXPECT_EQ(visit.read_some(), 0);
        EXPECT_EQ(visit.end(), 0U);
    }
}

void test_who_was_read_from_is_left_alone() {
    Visit visit;
    visit.say("0123456789abcdefmore");
    visit.await_something();
    EXPECT_EQ(visit.read_some(), 16);
    EXPECT_EQ(visit.end(), 0U);
    EXPECT_EQ(visit.read_some(), 4);
    EXPECT_EQ(visit.end(), 0U);
    visit.visitor.close();
    visit.await_the_end();
    EXPECT_EQ(visit.end(), 0U);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_who_has_said_nothing_is_ended),
        FABTEST(test_who_was_read_from_a_little_is_ended_too),
        FABTEST(test_what_was_said_and_not_read_is_not_read_any_more),
        FABTEST(test_who_has_gone_without_being_read_is_ended),
        FABTEST(test_who_was_read_from_is_left_alone),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
