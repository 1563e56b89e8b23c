// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Sending and receiving: what every call returns, and that each byte arrives once, in order, whatever the sizes.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>

#include <unistd.h>

#include "fabtests/common/streams.hpp"
#include "fabtests/common/test.hpp"

namespace {

using namespace fabtests;

Pair connected(size_t buffers = 0) { return Pair(core_name(), buffers, node_name()); }

iovec segment(const void* at, size_t length) { return {const_cast<void*>(at), length}; }

// What has arrived, which must be this text.
void expect_text(Stream& to, const std::string& text) {
    std::string got(text.size(), '\0');
    EXPECT_EQ(to.recv_all(got.data(), got.size()), text.size());
    EXPECT_EQ(got, text);
    char byte = 0;
    EXPECT_RESULT(recv(to, &byte, 1), -FI_EAGAIN);
}

void test_every_send_call_returns_the_number_of_bytes() {
    auto pair = connected();
    EXPECT_RESULT(fi_send(pair.client->get(), "send", 4, nullptr, FI_ADDR_UNSPEC, nullptr), 4);
    expect_text(*pair.server, "send");
    const iovec parts[] = {segment("se", 2), segment(nullptr, 0), segment("nd", 2), segment("v", 1)};
    EXPECT_RESULT(fi_sendv(pair.client->get(), parts, nullptr, 4, FI_ADDR_UNSPEC, nullptr), 5);
    expect_text(*pair.server, "sendv");
    EXPECT_RESULT(send_message(*pair.client, {segment("send", 4), segment("msg", 3)}, 0), 7);
    expect_text(*pair.server, "sendmsg");
    EXPECT_RESULT(fi_inject(pair.client->get(), "inject", 6, FI_ADDR_UNSPEC), 6);
    expect_text(*pair.server, "inject");
}

void test_descriptors_addresses_and_contexts_are_ignored() {
    auto pair = connected();
    int anything = 0;
    EXPECT_RESULT(fi_send(pair.client->get(), "x", 1, &anything, 42, &anything), 1);
    char byte = 0;
    EXPECT_EQ(await_readable(*pair.server), 1);
    EXPECT_RESULT(fi_recv(pair.server->get(), &byte, 1, &anything, 42, &anything), 1);
    EXPECT_EQ(byte, 'x');
}

void test_every_receive_call_returns_the_number_of_bytes() {
    auto pair = connected();
    char a[4];
    char b[100];
    pair.client->send_all("recv", 4);
    EXPECT_EQ(await_readable(*pair.server, 4), 4);
    EXPECT_RESULT(fi_recv(pair.server->get(), a, 4, nullptr, FI_ADDR_UNSPEC, nullptr), 4);
    EXPECT(memcmp(a, "recv", 4) == 0);
    pair.client->send_all("receivevector", 13);
    EXPECT_EQ(await_readable(*pair.server, 13), 13);
    const iovec parts[] = {segment(a, 3), segment(nullptr, 0), segment(b, sizeof(b))};
    EXPECT_RESULT(fi_recvv(pair.server->get(), parts, nullptr, 3, FI_ADDR_UNSPEC, nullptr), 13);
    EXPECT(memcmp(a, "rec", 3) == 0 && memcmp(b, "eivevector", 10) == 0);
    pair.client->send_all("message", 7);
    EXPECT_EQ(await_readable(*pair.server, 7), 7);
    EXPECT_RESULT(recv_message(*pair.server, {segment(a, 4), segment(b, 2)}, 0), 6);
    EXPECT(memcmp(a, "mess", 4) == 0 && memcmp(b, "ag", 2) == 0);
    EXPECT_RESULT(fi_recv(pair.server->get(), b, sizeof(b), nullptr, FI_ADDR_UNSPEC, nullptr), 1);
    EXPECT_EQ(b[0], 'e');
    EXPECT_RESULT(fi_recv(pair.server->get(), b, sizeof(b), nullptr, FI_ADDR_UNSPEC, nullptr), -FI_EAGAIN);
}

void test_nothing_to_send_gives_zero() {
    auto pair = connected();
    EXPECT_RESULT(send(*pair.client, nullptr, 0), 0);
    EXPECT_RESULT(fi_inject(pair.client->get(), nullptr, 0, FI_ADDR_UNSPEC), 0);
    EXPECT_RESULT(send_message(*pair.client, {}, 0), 0);
    const iovec empty[] = {segment(nullptr, 0), segment("x", 0)};
    EXPECT_RESULT(fi_sendv(pair.client->get(), empty, nullptr, 2, FI_ADDR_UNSPEC, nullptr), 0);
    pair.client->send_all("x", 1);
    expect_text(*pair.server, "x");
}

void test_no_room_gives_zero_while_there_are_bytes_and_eagain_if_not() {
    auto pair = connected();
    EXPECT_RESULT(recv(*pair.server, nullptr, 0), -FI_EAGAIN);
    pair.client->send_all("x", 1);
    EXPECT_EQ(await_readable(*pair.server), 1);
    EXPECT_RESULT(recv(*pair.server, nullptr, 0), 0);
    EXPECT_RESULT(recv_message(*pair.server, {}, 0), 0);
    expect_text(*pair.server, "x");
}

void test_harmless_flags_change_nothing() {
    auto pair = connected();
    const uint64_t flags[] = {FI_INJECT, FI_COMPLETION, FI_INJECT_COMPLETE, FI_TRANSMIT_COMPLETE,
                              FI_INJECT | FI_COMPLETION};
    for (const uint64_t flag : flags) {
        EXPECT_RESULT(send_message(*pair.client, {segment("abc", 3)}, flag), 3);
        expect_text(*pair.server, "abc");
    }
}

void test_what_cannot_be_asked_for_gives_einval_and_changes_nothing() {
    auto pair = connected();
    char space[8];
    Stream& s = *pair.client;
    EXPECT_RESULT(send_message(s, {segment("x", 1)}, FI_REMOTE_CQ_DATA), -FI_EINVAL);
    EXPECT_RESULT(send_message(s, {segment("x", 1)}, FI_DELIVERY_COMPLETE), -FI_EINVAL);
    EXPECT_RESULT(send_message(s, {segment("x", 1)}, 1ULL << 62), -FI_EINVAL);
    EXPECT_RESULT(recv_message(s, {segment(space, 8)}, 1ULL << 62), -FI_EINVAL);
    EXPECT_RESULT(recv_message(s, {segment(space, 8)}, FI_MULTI_RECV), -FI_EINVAL);
    EXPECT_RESULT(send(s, nullptr, 1), -FI_EINVAL);
    EXPECT_RESULT(recv(s, nullptr, 1), -FI_EINVAL);
    EXPECT_RESULT(fi_inject(s.get(), nullptr, 1, FI_ADDR_UNSPEC), -FI_EINVAL);
    EXPECT_RESULT(send_message(s, {segment("x", 1), segment(nullptr, 1)}, 0), -FI_EINVAL);
    EXPECT_RESULT(recv_message(s, {segment(space, 1), segment(nullptr, 1)}, 0), -FI_EINVAL);
    EXPECT_RESULT(fi_sendv(s.get(), nullptr, nullptr, 1, FI_ADDR_UNSPEC, nullptr), -FI_EINVAL);
    EXPECT_RESULT(fi_recvv(s.get(), nullptr, nullptr, 1, FI_ADDR_UNSPEC, nullptr), -FI_EINVAL);
    EXPECT_RESULT(fi_sendmsg(s.get(), nullptr, 0), -FI_EINVAL);
    EXPECT_RESULT(fi_recvmsg(s.get(), nullptr, 0), -FI_EINVAL);
    const std::vector<iovec> many(1025, segment("x", 1));
    EXPECT_RESULT(fi_sendv(s.get(), many.data(), nullptr, 1025, FI_ADDR_UNSPEC, nullptr), -FI_EINVAL);
    EXPECT_RESULT(fi_recvv(s.get(), many.data(), nullptr, 1025, FI_ADDR_UNSPEC, nullptr), -FI_EINVAL);
    EXPECT_RESULT(fi_sendv(s.get(), many.data(), nullptr, 1024, FI_ADDR_UNSPEC, nullptr), 1024);
    expect_text(*pair.server, std::string(1024, 'x'));
}

void test_lengths_may_add_up_to_more_than_a_size_t() {
    auto pair = connected();
    const std::string text(64, 'x');
    EXPECT_RESULT(send(*pair.client, text.data(), 64), 64);
    EXPECT_RESULT(await_readable(*pair.server, 64), 64);
    char bytes[64] = {};
    const iovec endless = segment(bytes, std::numeric_limits<size_t>::max() - 63);
    EXPECT_RESULT(recv_message(*pair.server, {segment(bytes, 64), endless}, FI_PEEK), 64);
    EXPECT(std::string(bytes, 64) == text);
    EXPECT_RESULT(recv_message(*pair.server, {segment(bytes, 64), endless}, 0), 64);
}

void test_memory_may_be_used_again_at_once() {
    auto pair = connected();
    Pattern pattern(5);
    char buffer[300];
    for (int i = 0; i < 30; ++i) {
        pattern.fill(buffer, sizeof(buffer));
        pair.client->send_all(buffer, sizeof(buffer));
        memset(buffer, '!', sizeof(buffer));
    }
    Pattern expected(5);
    drain_checked(*pair.client, *pair.server, expected, pattern.position());
}

void test_a_full_stream_gives_eagain_and_accepts_again_once_the_peer_reads() {
    for (const size_t size : {size_t{0}, size_t{4096}, size_t{5000}, size_t{1} << 20}) {
        auto pair = connected(size);
        Pattern pattern(7);
        std::vector<char> bytes(1000);
        size_t at = bytes.size();
        uint64_t accepted = 0;
        do { // what is under way may still make space
            for (ssize_t n = 0; n != -FI_EAGAIN;) {
                if (at == bytes.size()) {
                    pattern.fill(bytes.data(), bytes.size());
                    at = 0;
                }
                n = send(*pair.client, &bytes[at], bytes.size() - at);
                const size_t taken = n != -FI_EAGAIN ? static_cast<size_t>(check("fi_send", n)) : 0;
                at += taken;
                accepted += taken;
            }
        } while (pair.client->wait(patience(50)));
        const size_t space = // now that they have grown
            pair.client->get_option(FI_OPT_SEND_BUF_SIZE) + pair.server->get_option(FI_OPT_RECV_BUF_SIZE);
        EXPECT(accepted > 0 && accepted <= space);
        char byte = 0;
        EXPECT_RESULT(send(*pair.client, &byte, 1), -FI_EAGAIN);
        EXPECT_RESULT(peek_send(*pair.client), -FI_EAGAIN);

        Pattern expected(7);
        drain_checked(*pair.client, *pair.server, expected, accepted);
        EXPECT_RESULT(recv(*pair.server, &byte, 1), -FI_EAGAIN);
        while (peek_send(*pair.client) == -FI_EAGAIN) {
            wait_for_any(pair.own_host->fabric.get(), {&pair.client->ep->fid, &pair.server->ep->fid});
        }
        EXPECT_RESULT(send(*pair.client, &byte, 1), 1);
    }
}

void test_a_send_larger_than_the_buffer_is_accepted_in_part() {
    auto pair = connected();
    std::vector<char> large(8 << 20);
    Pattern(3).fill(large.data(), large.size());
    const ssize_t accepted = send(*pair.client, large.data(), large.size());
    EXPECT(accepted > 0 && static_cast<size_t>(accepted) < large.size());
    Pattern expected(3);
    drain_checked(*pair.client, *pair.server, expected, static_cast<uint64_t>(accepted));
}

void test_sizes_around_every_limit_arrive_whole() {
    auto pair = connected();
    uint64_t seed = 1;
    for (const size_t size :
         {1,    2,    3,    7,    31,    61,    127,   128,   129,   251,   509,   1021,  2039,  4093,  4095,  4096,
          4097, 8191, 8192, 8193, 16381, 16384, 16385, 32749, 32767, 32768, 32769, 40009, 65521, 65536, 65537, 99991}) {
        move_bytes(*pair.client, *pair.server, size, size, seed++);
        move_bytes(*pair.server, *pair.client, size, size, seed++);
    }
}

void test_odd_pieces_arrive_whole_both_ways_at_once() {
    auto pair = connected();
    uint64_t seed = 1;
    for (const size_t piece : {1, 2, 3, 7, 61, 127, 128, 129, 509, 4095, 4096, 4097, 8209, 32749, 65537}) {
        exchange_bytes(*pair.client, *pair.server, std::min<size_t>(piece * 701, 3000017), piece, seed++);
    }
}

void test_buffers_of_odd_sizes_carry_odd_pieces() {
    for (const size_t size : {4096, 4097, 5000, 9973, 65521, 131071}) {
        auto pair = connected(size);
        for (const size_t piece : {61, 1021, 4099, 20011}) {
            exchange_bytes(*pair.client, *pair.server, std::min<size_t>(piece * 301, 1000003), piece, piece + size);
        }
    }
}

// Sends and receives in one thread until both ends have all.
void work_both_ways(Stream& s, uint64_t total, uint64_t out, uint64_t in, std::atomic<int>& done) {
    Pattern sending(out);
    Pattern expected(in);
    std::vector<char> piece(5003);
    std::vector<char> space(7001);
    size_t at = piece.size();
    uint64_t sent = 0;
    const auto step = [&] {
        bool moved = false;
        if (sent < total) {
            if (at == piece.size()) {
                piece.resize(std::min<uint64_t>(piece.size(), total - sent));
                sending.fill(piece.data(), piece.size());
                at = 0;
            }
            if (const ssize_t n = send(s, &piece[at], piece.size() - at); n != -FI_EAGAIN) {
                at += static_cast<size_t>(check("fi_send", n));
                sent += static_cast<uint64_t>(n);
                moved = true;
            }
        }
        if (expected.position() < total) {
            if (const ssize_t n = recv(s, space.data(), space.size()); n != -FI_EAGAIN) {
                EXPECT(n != 0);
                expected.check(space.data(), static_cast<size_t>(check("fi_recv", n)));
                moved = true;
            }
        }
        return moved;
    };
    while (sent < total || expected.position() < total) {
        if (!step() && !s.wait(patience(20000))) {
            throw Failure("stands still at " + std::to_string(sent) + " sent, " + std::to_string(expected.position()) +
                          " received");
        }
    }
    for (++done; done < 2;) { // what is still held here goes out by our calls
        (void)peek_recv(s);
        (void)s.wait(20);
    }
}

void test_full_duplex_with_a_thread_at_each_end() {
    auto pair = connected();
    constexpr uint64_t total = 20000003;
    std::atomic<int> done{0};
    Threads threads;
    const auto end = [&](Stream& s, uint64_t out, uint64_t in) {
        try {
            work_both_ways(s, total, out, in, done);
        } catch (...) {
            done = 2;
            throw;
        }
    };
    threads.start([&] { end(*pair.client, 1, 2); });
    threads.start([&] { end(*pair.server, 2, 1); });
    threads.join();
}

void test_vectors_of_many_segments_arrive_in_order() {
    auto pair = connected();
    Pattern pattern(11);
    std::vector<char> bytes(1024 * 7);
    pattern.fill(bytes.data(), bytes.size());
    std::vector<iovec> out;
    for (size_t i = 0; i < 1024; ++i) {
        out.push_back(segment(&bytes[i * 7], 7));
    }
    EXPECT_RESULT(fi_sendv(pair.client->get(), out.data(), nullptr, out.size(), FI_ADDR_UNSPEC, nullptr), 7168);
    EXPECT_EQ(await_readable(*pair.server, 7168), 7168);
    std::vector<char> got(7168);
    std::vector<iovec> in;
    for (size_t i = 0; i < 1024; ++i) {
        in.push_back(segment(&got[i * 7], 7));
    }
    EXPECT_RESULT(fi_recvv(pair.server->get(), in.data(), nullptr, in.size(), FI_ADDR_UNSPEC, nullptr), 7168);
    EXPECT(got == bytes);
}

void test_fi_more_gathers_until_a_call_without_it() {
    auto pair = connected();
    std::string text;
    for (int i = 0; i < 50; ++i) {
        EXPECT_RESULT(send_message(*pair.client, {segment("more ", 5)}, FI_MORE), 5);
        text += "more ";
    }
    EXPECT_RESULT(send_message(*pair.client, {segment("end", 3)}, 0), 3);
    EXPECT_EQ(await_readable(*pair.server, text.size() + 3), static_cast<ssize_t>(text.size()) + 3);
    expect_text(*pair.server, text + "end");
}

// Sends a piece that is held back, makes the other call, and looks whether the piece comes.
template <class Call> void expect_more_ended_by(Call call) {
    auto pair = connected();
    EXPECT_RESULT(send_message(*pair.client, {segment("piece", 5)}, FI_MORE), 5);
    call(pair);
    EXPECT_EQ(await_readable(*pair.server, 5), 5);
}

void test_fi_more_is_ended_by_a_receive() {
    char byte = 0;
    expect_more_ended_by([&](Pair& pair) { EXPECT_RESULT(recv(*pair.client, &byte, 1), -FI_EAGAIN); });
    expect_more_ended_by([&](Pair& pair) { EXPECT_RESULT(peek_recv(*pair.client), -FI_EAGAIN); });
}

void test_fi_more_is_ended_by_a_receive_that_finds_bytes() {
    for (const bool peek : {false, true}) {
        auto pair = connected();
        pair.server->send_all("x", 1);
        EXPECT_EQ(await_readable(*pair.client), 1);
        EXPECT_RESULT(send_message(*pair.client, {segment("piece", 5)}, FI_MORE), 5);
        char byte = 0;
        EXPECT_RESULT(peek ? peek_recv(*pair.client) : recv(*pair.client, &byte, 1), 1);
        EXPECT_EQ(await_readable(*pair.server, 5), 5);
    }
}

void test_fi_more_is_ended_by_a_peek_at_the_room() {
    expect_more_ended_by([](Pair& pair) { EXPECT(peek_send(*pair.client) > 0); });
}

void test_fi_more_is_ended_by_reading_the_event_queue() {
    expect_more_ended_by([](Pair& pair) {
        uint32_t type = 0;
        fi_eq_cm_entry entry{};
        EXPECT_RESULT(fi_eq_read(pair.own_host->eq.get(), &type, &entry, sizeof(entry), 0), -FI_EAGAIN);
    });
}

void test_fi_more_is_ended_by_fi_trywait() {
    expect_more_ended_by([](Pair& pair) { (void)try_wait(*pair.own_host, &pair.client->ep->fid); });
}

void test_fi_more_is_ended_by_shutdown_and_close() {
    expect_more_ended_by([](Pair& pair) { EXPECT_RESULT(fi_shutdown(pair.client->get(), FI_RSTREAM_SHUT_WR), 0); });
    expect_more_ended_by([](Pair& pair) { pair.client.reset(); });
}

void test_a_long_run_of_small_sends_arrives_without_further_ones() {
    auto pair = connected();
    for (uint64_t round = 0; round < 20; ++round) {
        Pattern pattern(round);
        char piece[10];
        for (int i = 0; i < 300; ++i) {
            pattern.fill(piece, sizeof(piece));
            EXPECT_RESULT(send(*pair.client, piece, sizeof(piece)), 10);
        }
        Pattern expected(round);
        drain_checked(*pair.client, *pair.server, expected, 3000);
    }
}

// Slower than any that the stream has a reason to hold back, by a program that makes no other call.
void test_small_sends_now_and_then_arrive_without_any_other_call() {
    auto pair = connected();
    constexpr size_t sends = 60;
    char space[sends];
    size_t received = 0;
    for (size_t i = 0; i < sends; ++i) {
        EXPECT_RESULT(send(*pair.client, "x", 1), 1);
        usleep(static_cast<useconds_t>(1000 * patience(10)));
        const ssize_t n = recv(*pair.server, space, sizeof(space));
        EXPECT(n > 0 || n == -FI_EAGAIN);
        received += static_cast<size_t>(std::max<ssize_t>(n, 0));
        EXPECT(received + 5 > i); // the last ones may be under way
    }
}

// The calls of one end until one fails with another error than -FI_EAGAIN; that error.
ssize_t first_error_of_slow_sends(Stream& s) {
    ssize_t n = 1;
    for (int i = 0; i < 100 && (n > 0 || n == -FI_EAGAIN); ++i) {
        usleep(static_cast<useconds_t>(1000 * patience(10)));
        n = send(s, "x", 1);
    }
    return n;
}

void test_small_sends_now_and_then_tell_of_the_end_of_the_peer() {
    auto closed = connected();
    closed.server.reset();
    EXPECT_RESULT(first_error_of_slow_sends(*closed.client), -FI_EPIPE);
    auto aborted = connected();
    EXPECT_RESULT(fi_shutdown(aborted.server->get(), FI_RSTREAM_ABORT), 0);
    EXPECT_RESULT(first_error_of_slow_sends(*aborted.client), -FI_ECONNRESET);
}

void test_fi_senddata_and_fi_injectdata_are_not_offered() {
    auto pair = connected();
    EXPECT_RESULT(fi_senddata(pair.client->get(), "x", 1, nullptr, 1, FI_ADDR_UNSPEC, nullptr), -FI_ENOSYS);
    EXPECT_RESULT(fi_injectdata(pair.client->get(), "x", 1, 1, FI_ADDR_UNSPEC), -FI_ENOSYS);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_every_send_call_returns_the_number_of_bytes),
        FABTEST(test_descriptors_addresses_and_contexts_are_ignored),
        FABTEST(test_every_receive_call_returns_the_number_of_bytes),
        FABTEST(test_nothing_to_send_gives_zero),
        FABTEST(test_no_room_gives_zero_while_there_are_bytes_and_eagain_if_not),
        FABTEST(test_harmless_flags_change_nothing),
        FABTEST(test_what_cannot_be_asked_for_gives_einval_and_changes_nothing),
        FABTEST(test_lengths_may_add_up_to_more_than_a_size_t),
        FABTEST(test_memory_may_be_used_again_at_once),
        FABTEST(test_a_full_stream_gives_eagain_and_accepts_again_once_the_peer_reads),
        FABTEST(test_a_send_larger_than_the_buffer_is_accepted_in_part),
        FABTEST(test_sizes_around_every_limit_arrive_whole),
        FABTEST(test_odd_pieces_arrive_whole_both_ways_at_once),
        FABTEST(test_buffers_of_odd_sizes_carry_odd_pieces),
        FABTEST(test_full_duplex_with_a_thread_at_each_end),
        FABTEST(test_vectors_of_many_segments_arrive_in_order),
        FABTEST(test_fi_more_gathers_until_a_call_without_it),
        FABTEST(test_fi_more_is_ended_by_a_receive),
        FABTEST(test_fi_more_is_ended_by_a_receive_that_finds_bytes),
        FABTEST(test_fi_more_is_ended_by_a_peek_at_the_room),
        FABTEST(test_fi_more_is_ended_by_reading_the_event_queue),
        FABTEST(test_fi_more_is_ended_by_fi_trywait),
        FABTEST(test_fi_more_is_ended_by_shutdown_and_close),
        FABTEST(test_a_long_run_of_small_sends_arrives_without_further_ones),
        FABTEST(test_small_sends_now_and_then_arrive_without_any_other_call),
        FABTEST(test_small_sends_now_and_then_tell_of_the_end_of_the_peer),
        FABTEST(test_fi_senddata_and_fi_injectdata_are_not_offered),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
