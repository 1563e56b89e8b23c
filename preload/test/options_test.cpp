// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Options of the kernel's that an upgraded connection has, too, or that return it. options_test.sh runs it.
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include <linux/errqueue.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include "preload/test/pair.hpp"

namespace {

using fabtests::Clock;
using fabtests::milliseconds_since;
using fabtests::patience;
using preload_test::Connected;
using preload_test::events_of;
using preload_test::Pair;
using preload_test::path_of;
using preload_test::receive;
using preload_test::send_all;

// The option is no more than a permission.
void test_zerocopy_is_the_kernels_only_when_it_is_used() {
    const Pair pair;
    const int yes = 1;
    EXPECT_EQ(setsockopt(pair.a, SOL_SOCKET, SO_ZEROCOPY, &yes, sizeof(yes)), 0);
    for (int i = 0; i < 200; ++i) {
        pair.exchange();
    }
    EXPECT_EQ(path_of(pair.a), 3);
    send_all(pair.a, "before");
    send_all(pair.a, "without a copy", MSG_ZEROCOPY);
    send_all(pair.a, "after");
    const std::string all = "before"
                            "without a copy"
                            "after";
    std::string got;
    while (got.size() < all.size()) {
        got += receive(pair.b, all.size());
    }
    EXPECT_EQ(got, all);
    for (int i = 0; i < 200; ++i) {
        pair.exchange();
    }
    EXPECT(path_of(pair.a) < 2);
    // That the memory is free again.
    EXPECT(events_of(pair.a, 0) & POLLERR);
    alignas(cmsghdr) std::array<char, 256> control{};
    msghdr message{};
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    EXPECT_EQ(recvmsg(pair.a, &message, MSG_ERRQUEUE), 0);
    sock_extended_err about{};
    EXPECT(CMSG_FIRSTHDR(&message) != nullptr);
    memcpy(&about, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(about));
    EXPECT_EQ(about.ee_origin, SO_EE_ORIGIN_ZEROCOPY);
    EXPECT_EQ(about.ee_info, 0U);
}

// What TCP_INQ says beside `size` bytes that are received; -1: nothing.
int queued_behind(int fd, size_t size, size_t capacity = 64) {
    std::string bytes(size, '\0');
    iovec part{bytes.data(), bytes.size()};
    alignas(cmsghdr) std::array<char, 64> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = capacity;
    EXPECT_EQ(recvmsg(fd, &message, MSG_WAITALL), static_cast<ssize_t>(size));
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    EXPECT_EQ((message.msg_flags & MSG_CTRUNC) != 0, capacity < CMSG_LEN(sizeof(int)));
    if (header == nullptr || capacity < CMSG_LEN(sizeof(int))) {
        return -1;
    }
    EXPECT_EQ(header->cmsg_level, IPPROTO_TCP);
    EXPECT_EQ(header->cmsg_type, TCP_CM_INQ);
    int queued = -1;
    memcpy(&queued, CMSG_DATA(header), sizeof(queued));
    return queued;
}

void set_inq(int fd, int value) { EXPECT_EQ(setsockopt(fd, IPPROTO_TCP, TCP_INQ, &value, sizeof(value)), 0); }

void test_inq_tells_what_is_still_there() {
    const Pair pair;
    set_inq(pair.b, 1);
    for (int i = 0; i < 200; ++i) {
        pair.exchange();
    }
    EXPECT_EQ(path_of(pair.b), 3);
    int value = 0;
    socklen_t length = sizeof(value);
    EXPECT_EQ(getsockopt(pair.b, IPPROTO_TCP, TCP_INQ, &value, &length), 0);
    EXPECT_EQ(value, 1);
    send_all(pair.a, std::string(30000, 'x'));
    EXPECT_EQ(queued_behind(pair.b, 10000), 20000);
    EXPECT_EQ(queued_behind(pair.b, 19999), 1);
    EXPECT_EQ(queued_behind(pair.b, 1), 0);
    // As much as the program has space for.
    send_all(pair.a, "xyz");
    EXPECT_EQ(queued_behind(pair.b, 1, sizeof(cmsghdr)), -1);
    set_inq(pair.b, 0);
    EXPECT_EQ(queued_behind(pair.b, 1), -1);
    EXPECT_EQ(receive(pair.b, 10), std::string("z"));
}

// Set before the connection was upgraded, and while its bytes go back and forth: whoever is told that nothing is left
// waits for an edge, so it is never said too early.
void test_inq_never_says_nothing_while_there_is_something() {
    const Pair pair;
    set_inq(pair.b, 1);
    for (int round = 0; round < 300; ++round) {
        const size_t size = 1 + static_cast<size_t>(round) * 37;
        send_all(pair.a, std::string(size, 'y'));
        for (size_t left = size; left > 0;) {
            const size_t piece = std::min<size_t>(left, 1000);
            const int queued = queued_behind(pair.b, piece);
            left -= piece;
            EXPECT(left == 0 || queued > 0);
        }
        pair.exchange();
    }
}

// A further call is to find the end (tcp_inq_hint() in the kernel).
void test_inq_is_one_at_the_end() {
    const Pair pair;
    set_inq(pair.b, 1);
    pair.exchange();
    send_all(pair.a, "last");
    EXPECT_EQ(shutdown(pair.a, SHUT_WR), 0);
    EXPECT_EQ(events_of(pair.b, POLLRDHUP), POLLRDHUP);
    EXPECT_EQ(queued_behind(pair.b, 4), 1);
    EXPECT_EQ(receive(pair.b, 4), std::string());
}

// A connection with an option of the end that connects, or of the listener and so of the end that it accepts. moves: it
// is expected to be upgraded.
class WithOption : Connected {
  public:
    WithOption(bool listener, int name, const void* value, socklen_t length, bool moves)
        : Connected([&](int listening, int connecting) {
              EXPECT_EQ(setsockopt(listener ? listening : connecting, SOL_SOCKET, name, value, length), 0);
          }),
          with(listener ? b : a), without(listener ? a : b) {
        // The services take a moment to agree, or longer where processors are busy.
        const auto patience = std::chrono::seconds(moves ? 5 : 0) + std::chrono::milliseconds(300);
        const auto start = fabtests::Clock::now();
        while ((path_of(with) != 3 || path_of(without) != 3) && fabtests::Clock::now() - start < patience) {
            send_all(without, "0123456789");
            EXPECT_EQ(receive(with, 10, MSG_WAITALL), std::string("0123456789"));
            send_all(with, "x");
            EXPECT_EQ(receive(without, 1), std::string("x"));
            usleep(1000);
        }
    }
    const int with;
    const int without;
};

void expect_kernel(int name, const void* value, socklen_t length) {
    for (const bool listener : {false, true}) {
        const WithOption pair(listener, name, value, length, false);
        EXPECT_EQ(path_of(pair.with), 0);
    }
}

void test_an_option_set_before_it_was_connected_keeps_it_with_the_kernel() {
    const int ten = 10;
    const int yes = 1;
    expect_kernel(SO_RCVLOWAT, &ten, sizeof(ten));
    expect_kernel(SO_TIMESTAMPING, &yes, sizeof(yes));
    sock_filter all = BPF_STMT(BPF_RET | BPF_K, UINT32_MAX);
    const sock_fprog filter{1, &all};
    expect_kernel(SO_ATTACH_FILTER, &filter, sizeof(filter));
    const WithOption harmless(true, SO_KEEPALIVE, &yes, sizeof(yes), true);
    EXPECT_EQ(path_of(harmless.with), 3);
}

// When bytes came, only recvmsg tells, and only where it has space for that.
void test_timestamps_are_the_kernels_only_when_they_are_asked_for() {
    const int yes = 1;
    const WithOption pair(true, SO_TIMESTAMP, &yes, sizeof(yes), true);
    EXPECT_EQ(path_of(pair.with), 3);
    send_all(pair.without, "1234");
    alignas(cmsghdr) std::array<char, 64> control{};
    std::array<char, 2> bytes{};
    iovec part{bytes.data(), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    EXPECT_EQ(recvmsg(pair.with, &message, 0), 2);
    EXPECT_EQ(path_of(pair.with), 3);
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    EXPECT_EQ(recvmsg(pair.with, &message, 0), 2);
    // What was in the ring has no time of its own, nor has what comes until both directions are the kernel's again. And
    // the kernel turns its timestamps on in the background (net_enable_timestamp), late if processors are busy.
    const auto start = fabtests::Clock::now();
    for (int i = 0; i < 200 || (CMSG_FIRSTHDR(&message) == nullptr &&
                                fabtests::milliseconds_since(start) < fabtests::patience(10000));
         ++i) {
        send_all(pair.with, "x");
        EXPECT_EQ(receive(pair.without, 1), std::string("x"));
        send_all(pair.without, "56");
        message.msg_controllen = control.size();
        EXPECT_EQ(recvmsg(pair.with, &message, 0), 2);
        EXPECT_EQ(std::string(bytes.data(), 2), std::string("56"));
    }
    EXPECT_EQ(path_of(pair.with), 0);
    EXPECT(CMSG_FIRSTHDR(&message) != nullptr);
    EXPECT_EQ(CMSG_FIRSTHDR(&message)->cmsg_type, SCM_TIMESTAMP);
}

void test_a_low_water_mark_of_the_listeners_holds() {
    const int ten = 10;
    const WithOption pair(true, SO_RCVLOWAT, &ten, sizeof(ten), false);
    send_all(pair.without, "123456789");
    pollfd one{pair.with, POLLIN, 0};
    EXPECT_EQ(poll(&one, 1, 50), 0);
    send_all(pair.without, "0");
    EXPECT_EQ(events_of(pair.with, POLLIN), POLLIN);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_zerocopy_is_the_kernels_only_when_it_is_used),
        FABTEST(test_inq_tells_what_is_still_there),
        FABTEST(test_inq_never_says_nothing_while_there_is_something),
        FABTEST(test_inq_is_one_at_the_end),
        FABTEST(test_an_option_set_before_it_was_connected_keeps_it_with_the_kernel),
        FABTEST(test_timestamps_are_the_kernels_only_when_they_are_asked_for),
        FABTEST(test_a_low_water_mark_of_the_listeners_holds),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
