// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// FI_PEEK: how much can be read, and how much would be accepted.
#include <cstring>

#include "fabtests/common/streams.hpp"
#include "fabtests/common/test.hpp"

namespace {

using namespace fabtests;

Pair connected(size_t buffers = 0) { return Pair(core_name(), buffers, node_name()); }

void test_peek_gives_the_number_of_bytes_and_leaves_them() {
    auto pair = connected();
    EXPECT_RESULT(peek_recv(*pair.server), -FI_EAGAIN);
    const std::string text(1000, 'p');
    pair.client->send_all(text.data(), text.size());
    EXPECT_EQ(await_readable(*pair.server, 1000), 1000);
    EXPECT_RESULT(peek_recv(*pair.server), 1000);
    char space[400];
    EXPECT_RESULT(recv(*pair.server, space, sizeof(space)), 400);
    EXPECT_RESULT(peek_recv(*pair.server), 600);
    pair.client->send_all("more", 4);
    EXPECT_EQ(await_readable(*pair.server, 604), 604);
    EXPECT_RESULT(peek_recv(*pair.server), 604);
}

void test_peek_with_room_copies_and_leaves() {
    auto pair = connected();
    pair.client->send_all("abcdefgh", 8);
    EXPECT_EQ(await_readable(*pair.server, 8), 8);
    char a[3] = {};
    char b[20] = {};
    for (int i = 0; i < 2; ++i) {
        EXPECT_RESULT(recv_message(*pair.server, {{a, 3}, {b, 2}}, FI_PEEK), 5);
        EXPECT(memcmp(a, "abc", 3) == 0 && memcmp(b, "de", 3) == 0);
    }
    EXPECT_RESULT(recv_message(*pair.server, {{a, 3}, {nullptr, 0}, {b, sizeof(b)}}, FI_PEEK), 8);
    EXPECT(memcmp(b, "defgh", 5) == 0);
    EXPECT_RESULT(recv_message(*pair.server, {{a, 0}}, FI_PEEK), 8); // segments, but none with space
    char all[8];
    EXPECT_RESULT(recv(*pair.server, all, 8), 8);
    EXPECT(memcmp(all, "abcdefgh", 8) == 0);
    EXPECT_RESULT(recv_message(*pair.server, {{b, sizeof(b)}}, FI_PEEK), -FI_EAGAIN);
}

void test_peek_copies_around_the_end_of_the_buffer() {
    auto pair = connected(5000);
    Pattern sent(1);
    Pattern received(1);
    std::vector<char> out(3100);
    std::vector<char> in(3100);
    for (int i = 0; i < 40; ++i) {
        sent.fill(out.data(), out.size());
        pair.client->send_all(out.data(), out.size());
        EXPECT_EQ(await_readable(*pair.server, 3100, pair.client.get()), 3100);
        EXPECT_RESULT(recv_message(*pair.server, {{in.data(), 1001}, {in.data() + 1001, 2099}}, FI_PEEK), 3100);
        EXPECT(in == out);
        EXPECT_EQ(pair.server->recv_all(in.data(), in.size()), 3100U);
        received.check(in.data(), in.size());
    }
}

void test_peek_tells_of_the_end_and_of_a_reset() {
    auto pair = connected();
    pair.client->send_all("x", 1);
    EXPECT_RESULT(fi_shutdown(pair.client->get(), FI_RSTREAM_SHUT_WR), 0);
    EXPECT_EQ(await_readable(*pair.server), 1);
    char byte = 0;
    EXPECT_RESULT(recv(*pair.server, &byte, 1), 1);
    EXPECT_EQ(await_readable(*pair.server), 0);
    EXPECT_RESULT(recv_message(*pair.server, {{&byte, 1}}, FI_PEEK), 0);

    auto other = connected();
    EXPECT_RESULT(fi_shutdown(other.client->get(), FI_RSTREAM_ABORT), 0);
    EXPECT_EQ(await_readable(*other.server), -FI_ECONNRESET);
    EXPECT_RESULT(peek_send(*other.server), -FI_EPIPE);
}

void test_peek_at_the_room_gives_what_would_be_accepted() {
    for (const size_t size : {size_t{0}, size_t{4096}, size_t{5000}, size_t{1} << 20}) {
        auto pair = connected(size);
        const auto space = static_cast<ssize_t>(pair.client->get_option(FI_OPT_SEND_BUF_SIZE));
        EXPECT_RESULT(peek_send(*pair.client), space);
        EXPECT_RESULT(send_message(*pair.client, {{nullptr, 7}}, FI_PEEK), -FI_EINVAL);
        char message[100] = {};
        EXPECT_RESULT(send_message(*pair.client, {{message, 100}}, FI_PEEK), space); // whatever message is passed
        EXPECT_RESULT(peek_recv(*pair.server), -FI_EAGAIN);                          // nothing was sent
        // Fill it by what it says, until it says no.
        std::vector<char> bytes(static_cast<size_t>(space));
        uint64_t accepted = 0;
        ssize_t now = 0;
        Pattern pattern(8);
        while ((now = peek_send(*pair.client)) != -FI_EAGAIN) {
            EXPECT(now > 0 && now <= static_cast<ssize_t>(pair.client->get_option(FI_OPT_SEND_BUF_SIZE)));
            bytes.resize(std::max(bytes.size(), static_cast<size_t>(now))); // a default buffer may have grown
            pattern.fill(bytes.data(), static_cast<size_t>(now));
            EXPECT_RESULT(send(*pair.client, bytes.data(), static_cast<size_t>(now)), now);
            accepted += static_cast<uint64_t>(now);
        }
        Pattern expected(8);
        drain_checked(*pair.client, *pair.server, expected, accepted);
    }
}

void test_peek_makes_progress() {
    // A reader that only peeks, and a writer that only peeks once its buffer is full: all that fits arrives.
    auto pair = connected(4096);
    Pattern pattern(8);
    const uint64_t accepted = fill_up(*pair.client, pattern, 128);
    EXPECT(accepted >= 4096);
    const auto start = Clock::now();
    ssize_t now = 0;
    while ((now = peek_recv(*pair.server)) < 4096 && milliseconds_since(start) < patience(5000)) {
        (void)peek_send(*pair.client);
    }
    EXPECT_RESULT(now, 4096);
    Pattern expected(8);
    drain_checked(*pair.client, *pair.server, expected, accepted);
}

void test_peek_refuses_unknown_flags() {
    auto pair = connected();
    EXPECT_RESULT(recv_message(*pair.server, {}, FI_PEEK | FI_CLAIM), -FI_EINVAL);
    EXPECT_RESULT(recv_message(*pair.server, {}, FI_PEEK | FI_DISCARD), -FI_EINVAL);
    EXPECT_RESULT(send_message(*pair.server, {}, FI_PEEK | FI_REMOTE_CQ_DATA), -FI_EINVAL);
}

void test_peek_of_an_endpoint_that_is_not_connected_gives_enotconn() {
    Host host(here());
    Stream stream(host);
    EXPECT_RESULT(peek_recv(stream), -FI_ENOTCONN);
    EXPECT_RESULT(peek_send(stream), -FI_ENOTCONN);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_peek_gives_the_number_of_bytes_and_leaves_them),
        FABTEST(test_peek_with_room_copies_and_leaves),
        FABTEST(test_peek_copies_around_the_end_of_the_buffer),
        FABTEST(test_peek_tells_of_the_end_and_of_a_reset),
        FABTEST(test_peek_at_the_room_gives_what_would_be_accepted),
        FABTEST(test_peek_makes_progress),
        FABTEST(test_peek_refuses_unknown_flags),
        FABTEST(test_peek_of_an_endpoint_that_is_not_connected_gives_enotconn),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
