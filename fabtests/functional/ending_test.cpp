// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// How a connection ends: both directions, one, by a reset, by a close; what either end can still do, and what it is
// told.
#include <array>
#include <cstring>

#include "fabtests/common/streams.hpp"
#include "fabtests/common/test.hpp"

namespace {

using namespace fabtests;

Pair connected(size_t buffers = 0) { return Pair(core_name(), buffers, node_name()); }

// The next event, which must be the end of this stream's connection.
void expect_shutdown_event(Pair& pair, const Stream& stream) {
    pair.own_host->expect(FI_SHUTDOWN, &stream.ep->fid, patience(10000));
}

void expect_no_event(Pair& pair) {
    uint32_t type = 0;
    fi_eq_cm_entry entry{};
    EXPECT_RESULT(fi_eq_sread(pair.own_host->eq.get(), &type, &entry, sizeof(entry), 100, 0), -FI_EAGAIN);
}

ssize_t receive_end(Stream& s) {
    char byte = 0;
    return s.recv_some(&byte, 1);
}

ssize_t send_byte(Stream& s) { return send(s, "x", 1); }

void test_recv_returns_zero_after_peer_shutdown() {
    auto pair = connected();
    pair.client->send_all("last", 4);
    EXPECT_RESULT(fi_shutdown(pair.client->get(), 0), 0);
    char text[5] = {};
    EXPECT_EQ(pair.server->recv_all(text, 5), 4U);
    EXPECT(memcmp(text, "last", 4) == 0);
    for (int i = 0; i < 3; ++i) {
        EXPECT_RESULT(receive_end(*pair.server), 0);
        EXPECT_RESULT(peek_recv(*pair.server), 0);
    }
}

void test_send_gives_epipe_after_own_shutdown() {
    for (const uint64_t flags : {uint64_t{0}, uint64_t{FI_RSTREAM_SHUT_WR}}) {
        auto pair = connected();
        EXPECT_RESULT(fi_shutdown(pair.client->get(), flags), 0);
        for (int i = 0; i < 3; ++i) {
            EXPECT_RESULT(send_byte(*pair.client), -FI_EPIPE);
            EXPECT_RESULT(peek_send(*pair.client), -FI_EPIPE);
        }
    }
}

void test_send_gives_epipe_after_the_peer_has_ended_both_directions() {
    auto pair = connected();
    EXPECT_RESULT(fi_shutdown(pair.client->get(), 0), 0);
    EXPECT_RESULT(receive_end(*pair.server), 0);
    EXPECT_RESULT(send_byte(*pair.server), -FI_EPIPE);
    EXPECT_RESULT(send_byte(*pair.server), -FI_EPIPE);
    EXPECT_RESULT(receive_end(*pair.server), 0);
}

void test_what_had_arrived_can_be_received_after_own_shutdown_then_zero() {
    auto pair = connected();
    pair.server->send_all("before", 6);
    EXPECT_EQ(await_readable(*pair.client, 6), 6);
    EXPECT_RESULT(fi_shutdown(pair.client->get(), 0), 0);
    char text[7] = {};
    EXPECT_EQ(pair.client->recv_all(text, 7), 6U);
    EXPECT(memcmp(text, "before", 6) == 0);
    EXPECT_RESULT(receive_end(*pair.client), 0);
}

void test_half_close_leaves_the_other_direction_open() {
    auto pair = connected();
    pair.client->send_all("question", 8);
    EXPECT_RESULT(fi_shutdown(pair.client->get(), FI_RSTREAM_SHUT_WR), 0);
    char text[9] = {};
    EXPECT_EQ(pair.server->recv_all(text, 9), 8U);
    EXPECT_RESULT(receive_end(*pair.server), 0);
    move_bytes(*pair.server, *pair.client, 1000003, 5003); // many buffers full
    EXPECT_RESULT(send_byte(*pair.client), -FI_EPIPE);
    EXPECT_RESULT(fi_shutdown(pair.server->get(), FI_RSTREAM_SHUT_WR), 0);
    EXPECT_RESULT(receive_end(*pair.client), 0);
    EXPECT_RESULT(receive_end(*pair.server), 0);
}

void test_half_close_behind_a_full_buffer_delivers_all_first() {
    auto pair = connected();
    Pattern pattern(2);
    const uint64_t accepted = fill_up(*pair.client, pattern);
    EXPECT_RESULT(fi_shutdown(pair.client->get(), FI_RSTREAM_SHUT_WR), 0);
    Pattern expected(2);
    std::vector<char> buffer(4096);
    for (;;) {
        const ssize_t got = recv(*pair.server, buffer.data(), buffer.size());
        if (got == 0) {
            break;
        }
        if (got == -FI_EAGAIN) {
            EXPECT_RESULT(peek_recv(*pair.client), -FI_EAGAIN); // a call on the sending endpoint
            wait_for_any(pair.own_host->fabric.get(), {&pair.server->ep->fid, &pair.client->ep->fid});
            continue;
        }
        expected.check(buffer.data(), static_cast<size_t>(check("fi_recv", got)));
    }
    EXPECT_EQ(expected.position(), accepted);
}

void test_half_close_may_be_followed_by_a_full_one() {
    auto pair = connected();
    EXPECT_RESULT(fi_shutdown(pair.client->get(), FI_RSTREAM_SHUT_WR), 0);
    EXPECT_RESULT(receive_end(*pair.server), 0);
    EXPECT_RESULT(send_byte(*pair.server), 1);
    EXPECT_RESULT(fi_shutdown(pair.client->get(), 0), 0);
    const auto start = Clock::now();
    for (ssize_t ret = 0; (ret = send_byte(*pair.server)) != -FI_EPIPE;) {
        EXPECT(ret == 1 || ret == -FI_EAGAIN);
        EXPECT(milliseconds_since(start) < patience(10000));
        (void)pair.server->wait(10);
    }
    EXPECT_RESULT(fi_shutdown(pair.client->get(), 0), 0);
}

void test_both_ends_may_shut_down_at_once() {
    auto pair = connected();
    pair.client->send_all("a", 1);
    pair.server->send_all("b", 1);
    EXPECT_RESULT(fi_shutdown(pair.client->get(), FI_RSTREAM_SHUT_WR), 0);
    EXPECT_RESULT(fi_shutdown(pair.server->get(), FI_RSTREAM_SHUT_WR), 0);
    char text[2];
    EXPECT_EQ(pair.client->recv_all(text, 2), 1U);
    EXPECT_EQ(text[0], 'b');
    EXPECT_EQ(pair.server->recv_all(text, 2), 1U);
    EXPECT_EQ(text[0], 'a');
}

void test_abort_resets_the_peer_after_what_had_arrived() {
    auto pair = connected();
    pair.client->send_all("arrived", 7);
    EXPECT_EQ(await_readable(*pair.server, 7), 7);
    EXPECT_RESULT(fi_shutdown(pair.client->get(), FI_RSTREAM_ABORT), 0);
    char text[8] = {};
    EXPECT_RESULT(pair.server->recv_some(text, sizeof(text)), 7);
    EXPECT(memcmp(text, "arrived", 7) == 0);
    for (int i = 0; i < 3; ++i) {
        EXPECT_RESULT(receive_end(*pair.server), -FI_ECONNRESET);
        EXPECT_RESULT(peek_recv(*pair.server), -FI_ECONNRESET);
    }
    EXPECT_RESULT(send_byte(*pair.server), -FI_EPIPE); // it was told
}

void test_send_tells_of_a_reset_once() {
    auto pair = connected();
    EXPECT_RESULT(fi_shutdown(pair.client->get(), FI_RSTREAM_ABORT), 0);
    EXPECT(pair.server->wait(patience(10000)));
    EXPECT_RESULT(try_wait(*pair.own_host, &pair.server->ep->fid), -FI_EAGAIN);
    EXPECT_RESULT(send_byte(*pair.server), -FI_ECONNRESET);
    EXPECT_RESULT(send_byte(*pair.server), -FI_EPIPE);
    EXPECT_RESULT(peek_send(*pair.server), -FI_EPIPE);
    EXPECT_RESULT(receive_end(*pair.server), -FI_ECONNRESET);
}

void test_receive_gives_econnaborted_after_own_abort() {
    auto pair = connected();
    EXPECT_RESULT(fi_shutdown(pair.client->get(), FI_RSTREAM_ABORT), 0);
    for (int i = 0; i < 3; ++i) {
        EXPECT_RESULT(receive_end(*pair.client), -FI_ECONNABORTED);
    }
    EXPECT_RESULT(send_byte(*pair.client), -FI_EPIPE);
}

void test_close_ends_the_stream_of_the_peer() {
    auto pair = connected();
    move_bytes(*pair.client, *pair.server, 100003);
    pair.client->send_all("last", 4);
    pair.client.reset();
    char text[5] = {};
    EXPECT_EQ(pair.server->recv_all(text, 5), 4U);
    EXPECT(memcmp(text, "last", 4) == 0);
    EXPECT_RESULT(receive_end(*pair.server), 0);
    EXPECT_RESULT(send_byte(*pair.server), -FI_EPIPE);
}

void test_close_with_unread_data_resets_the_peer_after_what_was_sent() {
    auto pair = connected();
    pair.client->send_all("sent", 4);
    pair.server->send_all("unread", 6);
    EXPECT_EQ(await_readable(*pair.client, 6), 6);
    pair.client.reset();
    char text[5] = {};
    EXPECT_RESULT(pair.server->recv_some(text, 5), 4);
    EXPECT(memcmp(text, "sent", 4) == 0);
    EXPECT_RESULT(receive_end(*pair.server), -FI_ECONNRESET);
}

void test_close_delivers_what_the_peer_takes_later() {
    // A little, and more than fits the peer's buffer; closing waits for the core, so another thread reads.
    for (const bool full : {false, true}) {
        auto pair = connected();
        Pattern pattern(4);
        uint64_t accepted = 1000;
        if (full) {
            accepted = fill_up(*pair.client, pattern);
        } else {
            char bytes[1000];
            pattern.fill(bytes, sizeof(bytes));
            pair.client->send_all(bytes, sizeof(bytes));
        }
        Threads threads;
        threads.start([&] { pair.client.reset(); });
        std::vector<char> buffer(3001);
        Pattern expected(4);
        ssize_t got = 0;
        while ((got = pair.server->recv_some(buffer.data(), buffer.size())) > 0) {
            expected.check(buffer.data(), static_cast<size_t>(got));
        }
        threads.join();
        EXPECT_RESULT(got, 0);
        EXPECT_EQ(expected.position(), accepted);
    }
}

// One thread has both ends, and nobody reads the queue: what is left moves on with any call on the fabric.
void test_what_a_closed_end_holds_moves_on_while_only_its_peer_is_called() {
    for (const bool spins : {false, true}) {
        auto pair = connected();
        Pattern pattern(5);
        const uint64_t accepted = fill_up(*pair.client, pattern);
        const size_t shortly = 20;
        EXPECT_RESULT(
            fi_setopt(&pair.client->ep->fid, FI_OPT_ENDPOINT, FI_OPT_RSTREAM_LINGER, &shortly, sizeof(shortly)), 0);
        pair.client.reset();
        std::vector<char> buffer(3001);
        Pattern expected(5);
        ssize_t got = 0;
        const auto start = Clock::now();
        while ((got = recv(*pair.server, buffer.data(), buffer.size())) != 0) {
            if (got == -FI_EAGAIN) {
                EXPECT(milliseconds_since(start) < patience(20000));
                if (!spins) {
                    (void)pair.server->wait(1);
                }
                continue;
            }
            EXPECT(got > 0);
            expected.check(buffer.data(), static_cast<size_t>(got));
        }
        EXPECT_EQ(expected.position(), accepted);
    }
}

void test_close_waits_no_longer_than_the_linger_time() {
    auto pair = connected();
    Pattern pattern(4);
    fill_up(*pair.client, pattern);
    const auto start = Clock::now();
    pair.client.reset(); // nobody reads at the other end
    const int took = milliseconds_since(start);
    EXPECT(took < patience(6000));
}

void test_shutdown_is_reported_once_and_names_the_endpoint() {
    using End = void (*)(Pair&);
    const End ends[] = {
        [](Pair& pair) { pair.client.reset(); },
        [](Pair& pair) { EXPECT_RESULT(fi_shutdown(pair.client->get(), 0), 0); },
        [](Pair& pair) {
            EXPECT_RESULT(fi_shutdown(pair.client->get(), FI_RSTREAM_SHUT_WR), 0);
            EXPECT_RESULT(receive_end(*pair.server), 0);
            EXPECT_RESULT(fi_shutdown(pair.client->get(), 0), 0);
            pair.client.reset();
        },
        [](Pair& pair) {
            pair.client->send_all("unread", 6);
            pair.server->send_all("unread", 6);
            EXPECT_EQ(await_readable(*pair.client, 6), 6);
            pair.client.reset();
        },
    };
    for (const End end : ends) {
        auto pair = connected();
        end(pair);
        (void)await_readable(*pair.server);
        expect_shutdown_event(pair, *pair.server);
        char buffer[8];
        (void)recv(*pair.server, buffer, sizeof(buffer));
        (void)recv(*pair.server, buffer, sizeof(buffer));
        expect_no_event(pair);
    }
}

void test_shutdown_is_reported_to_who_only_reads_the_queue() {
    auto pair = connected();
    EXPECT_RESULT(fi_shutdown(pair.client->get(), FI_RSTREAM_SHUT_WR), 0);
    expect_shutdown_event(pair, *pair.server);
    EXPECT_RESULT(receive_end(*pair.server), 0);
}

void test_what_arrived_before_a_shutdown_event_can_still_be_received() {
    auto pair = connected();
    Pattern pattern(9);
    std::vector<char> bytes(20000);
    pattern.fill(bytes.data(), bytes.size());
    pair.client->send_all(bytes.data(), bytes.size());
    pair.client.reset();
    (void)await_readable(*pair.server, bytes.size());
    expect_shutdown_event(pair, *pair.server);
    std::vector<char> got(bytes.size());
    EXPECT_EQ(pair.server->recv_all(got.data(), got.size()), got.size());
    EXPECT(got == bytes);
    EXPECT_RESULT(receive_end(*pair.server), 0);
}

void test_shutdown_takes_only_the_flags_of_the_manual() {
    auto pair = connected();
    EXPECT_RESULT(fi_shutdown(pair.client->get(), FI_RECV), -FI_EINVAL);
    EXPECT_RESULT(fi_shutdown(pair.client->get(), 1ULL << 62), -FI_EINVAL);
    exchange_bytes(*pair.client, *pair.server, 1000);
}

void test_shutdown_of_what_is_not_connected_gives_enotconn() {
    Host host(here());
    Stream stream(host);
    for (const uint64_t flags : {uint64_t{0}, uint64_t{FI_RSTREAM_SHUT_WR}, uint64_t{FI_RSTREAM_ABORT}}) {
        EXPECT_RESULT(fi_shutdown(stream.get(), flags), -FI_ENOTCONN);
    }
}

void test_ends_while_both_sides_send() {
    for (int round = 0; round < 20; ++round) {
        auto pair = connected(4096);
        std::array flows{Flow(*pair.client, *pair.server, 100000, 1009, 1),
                         Flow(*pair.server, *pair.client, 100000, 1009, 2)};
        for (int i = 0; i < 5 * round; ++i) {
            flows[0].step();
            flows[1].step();
        }
        switch (round % 4) {
        case 0:
            pair.client.reset();
            break;
        case 1:
            EXPECT_RESULT(fi_shutdown(pair.client->get(), FI_RSTREAM_ABORT), 0);
            break;
        case 2:
            EXPECT_RESULT(fi_shutdown(pair.client->get(), 0), 0);
            break;
        default:
            EXPECT_RESULT(fi_shutdown(pair.client->get(), FI_RSTREAM_SHUT_WR), 0);
            break;
        }
        char buffer[1000];
        ssize_t got = 0;
        while ((got = recv(*pair.server, buffer, sizeof(buffer))) > 0 || got == -FI_EAGAIN) {
            if (got == -FI_EAGAIN) {
                if (pair.client) {
                    char other[1000];
                    (void)recv(*pair.client, other, sizeof(other));
                }
                (void)pair.server->wait(1);
            }
        }
        EXPECT(got == 0 || got == -FI_ECONNRESET);
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_recv_returns_zero_after_peer_shutdown),
        FABTEST(test_send_gives_epipe_after_own_shutdown),
        FABTEST(test_send_gives_epipe_after_the_peer_has_ended_both_directions),
        FABTEST(test_what_had_arrived_can_be_received_after_own_shutdown_then_zero),
        FABTEST(test_half_close_leaves_the_other_direction_open),
        FABTEST(test_half_close_behind_a_full_buffer_delivers_all_first),
        FABTEST(test_half_close_may_be_followed_by_a_full_one),
        FABTEST(test_both_ends_may_shut_down_at_once),
        FABTEST(test_abort_resets_the_peer_after_what_had_arrived),
        FABTEST(test_send_tells_of_a_reset_once),
        FABTEST(test_receive_gives_econnaborted_after_own_abort),
        FABTEST(test_close_ends_the_stream_of_the_peer),
        FABTEST(test_close_with_unread_data_resets_the_peer_after_what_was_sent),
        FABTEST(test_close_delivers_what_the_peer_takes_later),
        FABTEST(test_what_a_closed_end_holds_moves_on_while_only_its_peer_is_called),
        FABTEST(test_close_waits_no_longer_than_the_linger_time),
        FABTEST(test_shutdown_is_reported_once_and_names_the_endpoint),
        FABTEST(test_shutdown_is_reported_to_who_only_reads_the_queue),
        FABTEST(test_what_arrived_before_a_shutdown_event_can_still_be_received),
        FABTEST(test_shutdown_takes_only_the_flags_of_the_manual),
        FABTEST(test_shutdown_of_what_is_not_connected_gives_enotconn),
        FABTEST(test_ends_while_both_sides_send),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
