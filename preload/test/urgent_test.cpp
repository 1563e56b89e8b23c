// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Urgent data on a connection that is upgraded: it is the kernel's from then on, and the byte is beside the stream, as
// tcp(7) has it. urgent_test.sh runs it.
#include <array>
#include <cerrno>
#include <string>

#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

#include "preload/test/pair.hpp"

namespace {

using preload_test::events_of;
using preload_test::Pair;
using preload_test::path_of;
using preload_test::receive;
using preload_test::send_all;

void test_an_urgent_byte_is_stepped_over() {
    const Pair pair;
    send_all(pair.a, "before");
    send_all(pair.a, "u", MSG_OOB);
    send_all(pair.a, "behind");
    EXPECT_EQ(receive(pair.b, 100), std::string("before"));
    EXPECT_EQ(receive(pair.b, 6, MSG_WAITALL), std::string("behind"));
    for (int i = 0; i < 100; ++i) {
        pair.exchange();
    }
}

void test_an_urgent_byte_is_received_beside_the_stream() {
    const Pair pair;
    send_all(pair.a, "before");
    send_all(pair.a, "lastu", MSG_OOB); // the last byte is the urgent one
    send_all(pair.a, "behind");
    EXPECT_EQ(events_of(pair.b, POLLPRI) & POLLPRI, POLLPRI);
    EXPECT_EQ(receive(pair.b, 1, MSG_OOB), std::string("u"));
    EXPECT_EQ(receive(pair.b, 10, MSG_WAITALL), std::string("beforelast"));
    EXPECT_EQ(receive(pair.b, 6, MSG_WAITALL), std::string("behind"));
}

void test_urgent_bytes_go_both_ways_again_and_again() {
    const Pair pair;
    for (int i = 0; i < 50; ++i) {
        for (const auto& [from, to] : {std::pair{pair.a, pair.b}, std::pair{pair.b, pair.a}}) {
            send_all(from, "u", MSG_OOB);
            send_all(from, "x");
            EXPECT_EQ(receive(to, 1), std::string("x"));
        }
    }
}

// What the receiver has not read lies in the ring when the urgent byte is sent. A ring that is not read holds 72 KiB.
void test_what_was_sent_before_is_read_first() {
    const Pair pair;
    const std::string much(50000, 'm');
    send_all(pair.a, much);
    send_all(pair.a, "u", MSG_OOB);
    send_all(pair.a, "end");
    std::string got;
    while (got.size() < much.size() + 3) {
        got += receive(pair.b, 70000);
    }
    EXPECT(got == much + "end");
}

void test_the_connection_stays_with_the_kernel() {
    const Pair pair;
    send_all(pair.a, "u", MSG_OOB);
    for (int i = 0; i < 200; ++i) {
        pair.exchange();
    }
    EXPECT(path_of(pair.a) < 2);
    EXPECT(path_of(pair.b) < 2);
}

// Those that have no meaning in a ring.
void test_flags_that_only_the_kernel_knows() {
    const Pair pair;
    send_all(pair.a, "x", MSG_DONTROUTE);
    EXPECT_EQ(receive(pair.b, 1), std::string("x"));
    EXPECT_EQ(send(pair.a, "x", 1, MSG_OOB | MSG_DONTWAIT), 1);
    char byte = 0;
    EXPECT_EQ(recv(pair.b, &byte, 1, MSG_DONTWAIT), -1);
    EXPECT_EQ(errno, EAGAIN);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_an_urgent_byte_is_stepped_over),
        FABTEST(test_an_urgent_byte_is_received_beside_the_stream),
        FABTEST(test_urgent_bytes_go_both_ways_again_and_again),
        FABTEST(test_what_was_sent_before_is_read_first),
        FABTEST(test_the_connection_stays_with_the_kernel),
        FABTEST(test_flags_that_only_the_kernel_knows),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
