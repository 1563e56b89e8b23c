// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Maps: memory that the peer writes to beside the stream. What each operation returns, and that what was written is
// there when the next byte of the stream is. The end of maps is in unmap_test.
#include <unistd.h>

#include "fabtests/functional/maps.hpp"

namespace {

using namespace fabtests;

// ---- order

void test_what_was_written_is_there_with_the_next_byte() {
    Ends ends;
    Bytes memory(50000);
    const uint64_t offset = mapped(*ends.server, memory);
    pass_a_byte(*ends.server, *ends.client);
    std::mt19937 dice(1);
    Bytes expected = memory;
    for (int round = 0; round < 1500; ++round) {
        for (auto writes = dice() % 3; writes-- != 0;) {
            const size_t most = round % 3 == 0 ? memory.size() : round % 3 == 1 ? 2000 : 16;
            const size_t length = 1 + dice() % most;
            const size_t at = dice() % (memory.size() - length + 1);
            const Bytes data = noise(length, dice());
            write_all(*ends.client, *ends.server, data.data(), length, offset + at);
            std::copy(data.begin(), data.end(), expected.begin() + static_cast<ptrdiff_t>(at));
        }
        const auto marker = static_cast<char>(round);
        ends.client->send_all(&marker, 1);
        char got = 0;
        until(*ends.client, *ends.server, [&] { return recv(*ends.server, &got, 1) == 1; });
        EXPECT(memory == expected); // at the moment at which the byte came
        EXPECT_EQ(got, marker);
    }
}

void test_writes_and_the_stream_share_the_send_buffer_in_order() {
    Ends ends(16, 4096);
    Bytes memory(4096);
    const uint64_t offset = mapped(*ends.server, memory);
    pass_a_byte(*ends.server, *ends.client);
    for (unsigned round = 1; round < 40; ++round) {
        // Bytes that the peer has no space for, a write behind them, and a marker behind that.
        Pattern out(round);
        Pattern in(round);
        const uint64_t before = fill_up(*ends.client, out, 700);
        const Bytes data = noise(100 + round, round);
        size_t written = 0;
        bool marked = false;
        uint64_t received = 0;
        char byte = 0;
        until(*ends.client, *ends.server, [&] {
            if (written < data.size()) {
                const ssize_t n =
                    write(*ends.client, data.data() + written, data.size() - written, offset + round + written);
                written += static_cast<size_t>(std::max<ssize_t>(n, 0));
            } else if (!marked) {
                marked = send(*ends.client, "m", 1) == 1;
            }
            if (received < before) {
                std::vector<char> some(std::min<uint64_t>(300, before - received));
                const ssize_t n = recv(*ends.server, some.data(), some.size());
                if (n > 0) {
                    in.check(some.data(), static_cast<size_t>(n));
                    received += static_cast<uint64_t>(n);
                }
                return false;
            }
            return recv(*ends.server, &byte, 1) == 1;
        });
        EXPECT_EQ(byte, 'm');
        EXPECT(memcmp(memory.data() + round, data.data(), data.size()) == 0);
    }
}

void test_a_write_is_taken_as_far_as_there_is_room() {
    Ends ends(16, 4096);
    Bytes memory(100000);
    const uint64_t offset = mapped(*ends.server, memory);
    pass_a_byte(*ends.server, *ends.client);
    Pattern pattern(3);
    (void)fill_up(*ends.client, pattern); // nobody reads: what comes behind it has to wait
    EXPECT_RESULT(write(*ends.client, memory.data(), 10, offset), -FI_EAGAIN);
    EXPECT(try_wait(ends.host, &ends.client->ep->fid) == 0);
    // On another connection, more than the buffer holds.
    Ends fresh(16, 4096);
    const Bytes data = noise(100000, 4);
    const uint64_t at = mapped(*fresh.server, memory);
    pass_a_byte(*fresh.server, *fresh.client);
    const ssize_t n = write(*fresh.client, data.data(), data.size(), at);
    EXPECT(n > 0 && n <= 100000);
    write_all(*fresh.client, *fresh.server, data.data() + n, data.size() - static_cast<size_t>(n), at + n);
    pass_a_byte(*fresh.client, *fresh.server);
    EXPECT(memory == data);
}

void test_many_small_writes_behind_a_full_stream_arrive() {
    Ends ends(16, 8192);
    Bytes memory(8000);
    const uint64_t offset = mapped(*ends.server, memory);
    pass_a_byte(*ends.server, *ends.client);
    const Bytes data = noise(memory.size(), 9);
    Pattern out(5);
    Pattern in(5);
    uint64_t sent = 0;
    // The peer's window is full, the send buffer is not.
    until(*ends.client, *ends.server, [&] {
        std::vector<char> piece(512);
        Pattern again = out;
        again.fill(piece.data(), piece.size());
        const ssize_t n = send(*ends.client, piece.data(), piece.size());
        if (n > 0) {
            out.fill(piece.data(), static_cast<size_t>(n));
            sent += static_cast<uint64_t>(n);
        }
        return sent >= 8192 + 1024;
    });
    // Apart from each other, so that none is joined with the one before: more than any queue of them holds.
    size_t taken = 0;
    for (; taken < 1000; ++taken) {
        if (write(*ends.client, data.data() + 8 * taken, 4, offset + 8 * taken) != 4) {
            break;
        }
    }
    EXPECT(taken >= 32 && taken < 1000);
    EXPECT_RESULT(peek_send(*ends.client), -FI_EAGAIN);
    uint64_t received = 0;
    while (received < sent) {
        std::vector<char> some(sent - received);
        const ssize_t n = recv(*ends.server, some.data(), some.size());
        if (n > 0) {
            in.check(some.data(), static_cast<size_t>(n));
            received += static_cast<uint64_t>(n);
        }
        (void)peek_send(*ends.client);
    }
    for (size_t i = taken; i < 1000; ++i) {
        write_all(*ends.client, *ends.server, data.data() + 8 * i, 4, offset + 8 * i);
    }
    pass_a_byte(*ends.client, *ends.server);
    for (size_t i = 0; i < memory.size(); ++i) {
        EXPECT(memory[i] == (i % 8 < 4 ? data[i] : 0));
    }
}

void test_pieces_with_more_behind_them_arrive() {
    Ends ends;
    Bytes memory(1000);
    const uint64_t offset = mapped(*ends.server, memory);
    pass_a_byte(*ends.server, *ends.client);
    const Bytes data = noise(1000, 3);
    for (size_t at = 0; at < 1000; at += 10) {
        EXPECT_RESULT(write(*ends.client, data.data() + at, 10, offset + at, FI_MORE), 10);
    }
    pass_a_byte(*ends.client, *ends.server);
    EXPECT(memory == data);
}

// ---- offsets and limits

// By a program that makes no other call, with a peer that does: more of them than may be in flight.
void test_small_writes_now_and_then_arrive_without_any_other_call() {
    Host host(here());
    Listener listener(host);
    Stream client(host);
    client.set_option(FI_OPT_RSTREAM_MAPS, 1);
    client.set_option(FI_OPT_TX_SIZE, 8);
    client.connect(listener.name().data());
    const Info info(host.expect(FI_CONNREQ, &listener.pep->fid).info);
    Stream server(host, info.get());
    server.accept();
    for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(host.next_event().type, FI_CONNECTED);
    }
    constexpr size_t writes = 60;
    Bytes memory(writes);
    const uint64_t offset = mapped(server, memory);
    pass_a_byte(server, client);
    for (size_t i = 0; i < writes; ++i) {
        EXPECT_RESULT(write(client, "x", 1, offset + i), 1);
        usleep(static_cast<useconds_t>(1000 * patience(10)));
        (void)peek_recv(server);
        EXPECT(static_cast<size_t>(std::count(memory.begin(), memory.end(), 'x')) + 5 > i); // the last ones under way
    }
}

void test_offsets_are_given_or_chosen() {
    Ends ends;
    Bytes a(5000);
    Bytes b(5000);
    Bytes c(5000);
    EXPECT_EQ(mapped(*ends.server, a, 123457), 123457U);
    const uint64_t chosen = mapped(*ends.server, b);
    const uint64_t next = mapped(*ends.server, c);
    EXPECT(chosen != next);
    pass_a_byte(*ends.server, *ends.client);
    const Bytes data = noise(5000, 1);
    for (const uint64_t offset : {uint64_t{123457}, chosen, next}) {
        write_all(*ends.client, *ends.server, data.data(), data.size(), offset);
    }
    pass_a_byte(*ends.client, *ends.server);
    EXPECT(a == data && b == data && c == data);
    unmapped(*ends.server, *ends.client, b);
    EXPECT(mapped(*ends.server, b) > next); // a late write to the old one hits nothing
}

void test_the_same_offsets_serve_both_directions() {
    Ends ends;
    Bytes a(64);
    Bytes b(64);
    EXPECT_EQ(mapped(*ends.server, a, 0), 0U);
    EXPECT_EQ(mapped(*ends.client, b, 0), 0U);
    pass_a_byte(*ends.server, *ends.client);
    pass_a_byte(*ends.client, *ends.server);
    EXPECT_RESULT(write(*ends.client, "to server", 9, 0), 9);
    EXPECT_RESULT(write(*ends.server, "to client", 9, 0), 9);
    pass_a_byte(*ends.server, *ends.client);
    pass_a_byte(*ends.client, *ends.server);
    EXPECT(memcmp(a.data(), "to server", 9) == 0 && memcmp(b.data(), "to client", 9) == 0);
}

void test_offsets_that_are_taken_or_out_of_range_are_refused() {
    Ends ends;
    Bytes a(1000);
    Bytes b(1000);
    (void)mapped(*ends.server, a, 5000);
    for (const uint64_t offset : {4001, 5000, 5999}) {
        uint64_t at = offset;
        EXPECT_RESULT(map(*ends.server, b, at), -FI_EADDRINUSE);
    }
    (void)mapped(*ends.server, b, 4000);
    Bytes c(1000);
    for (const uint64_t offset : {uint64_t{INT64_MAX} - 998, uint64_t{1} << 63, UINT64_MAX - 1}) {
        uint64_t at = offset;
        EXPECT_RESULT(map(*ends.server, c, at), -FI_EINVAL);
    }
    EXPECT_EQ(mapped(*ends.server, c, uint64_t{INT64_MAX} - 999), uint64_t{INT64_MAX} - 999);
    pass_a_byte(*ends.server, *ends.client);
    EXPECT_RESULT(write(*ends.client, "end", 3, uint64_t{INT64_MAX} - 2), 3);
    pass_a_byte(*ends.client, *ends.server);
    EXPECT(memcmp(c.data() + 997, "end", 3) == 0);
}

void test_arguments_that_make_no_sense_are_refused() {
    Ends ends;
    Bytes memory(100);
    uint64_t offset = anywhere;
    auto& ops = ops_of(*ends.server);
    EXPECT(ops.size >= sizeof(fi_ops_rstream_map));
    EXPECT_RESULT(ops.map(ends.server->get(), nullptr, 100, FI_REMOTE_WRITE, &offset), -FI_EINVAL);
    EXPECT_RESULT(ops.map(ends.server->get(), memory.data(), 0, FI_REMOTE_WRITE, &offset), -FI_EINVAL);
    EXPECT_RESULT(ops.map(ends.server->get(), memory.data(), SIZE_MAX, FI_REMOTE_WRITE, &offset), -FI_EINVAL);
    EXPECT_RESULT(ops.map(ends.server->get(), memory.data(), 100, FI_REMOTE_READ, &offset), -FI_EINVAL);
    EXPECT_RESULT(ops.map(ends.server->get(), memory.data(), 100, FI_REMOTE_WRITE, nullptr), -FI_EINVAL);
    EXPECT_RESULT(unmap(*ends.server, memory), -FI_EINVAL);
    (void)mapped(*ends.server, memory);
    EXPECT_RESULT(ops.unmap(ends.server->get(), memory.data(), 99, 0), -FI_EINVAL);
    EXPECT_RESULT(ops.unmap(ends.server->get(), memory.data(), 100, 1ULL << 40), -FI_EINVAL);
    EXPECT_RESULT(write(*ends.client, nullptr, 1, 0), -FI_EINVAL);
    EXPECT_RESULT(write(*ends.client, "x", 1, 0, FI_PEEK), -FI_EINVAL);
    void* other = nullptr;
    EXPECT_RESULT(fi_open_ops(&ends.server->ep->fid, "no such operations", 0, &other, nullptr), -FI_ENOSYS);
    EXPECT_RESULT(fi_open_ops(&ends.server->ep->fid, FI_RSTREAM_MAP_OPS, 1, &other, nullptr), -FI_EINVAL);
    both_ways_still_work(ends);
}

void test_an_endpoint_that_is_not_connected_maps_nothing() {
    Host host(here());
    Stream s(host);
    Bytes memory(100);
    uint64_t offset = 0;
    EXPECT_RESULT(map(s, memory, offset), -FI_ENOTCONN);
    EXPECT_RESULT(unmap(s, memory), -FI_EINVAL);
    EXPECT_RESULT(write(s, "x", 1, 0), -FI_ENOTCONN);
    check("fi_enable", fi_enable(s.get()));
    EXPECT_RESULT(map(s, memory, offset), -FI_ENOTCONN);
    EXPECT_RESULT(unmap(s, memory), -FI_EINVAL);
    EXPECT_RESULT(write(s, "x", 1, 0), -FI_ENOTCONN);
}

void test_the_number_of_maps_is_an_option() {
    Host host(here());
    Stream s(host);
    EXPECT_EQ(s.get_option(FI_OPT_RSTREAM_MAPS), 0U);
    s.set_option(FI_OPT_RSTREAM_MAPS, 7);
    EXPECT_EQ(s.get_option(FI_OPT_RSTREAM_MAPS), 7U);
    s.set_option(FI_OPT_RSTREAM_MAPS, 1000000);
    EXPECT_EQ(s.get_option(FI_OPT_RSTREAM_MAPS), 4096U);
    s.set_option(FI_OPT_RSTREAM_MAPS, 0);
    EXPECT_EQ(s.get_option(FI_OPT_RSTREAM_MAPS), 0U);
    const uint32_t narrow = 3;
    EXPECT_RESULT(fi_setopt(&s.ep->fid, FI_OPT_ENDPOINT, FI_OPT_RSTREAM_MAPS, &narrow, sizeof(narrow)), -FI_EINVAL);
    check("fi_enable", fi_enable(s.get()));
    const size_t more = 8;
    EXPECT_RESULT(fi_setopt(&s.ep->fid, FI_OPT_ENDPOINT, FI_OPT_RSTREAM_MAPS, &more, sizeof(more)), -FI_EOPBADSTATE);
}

void test_the_peer_says_how_many_maps_there_may_be() {
    {
        Ends none(0);
        Bytes memory(100);
        uint64_t offset = anywhere;
        EXPECT_RESULT(map(*none.server, memory, offset), -FI_ENOSPC);
        EXPECT_RESULT(write(*none.client, "x", 1, 0), -FI_EINVAL);
        both_ways_still_work(none);
    }
    Ends ends(3);
    std::vector<Bytes> memory(4, Bytes(100));
    uint64_t offset = anywhere;
    for (int i = 0; i < 3; ++i) {
        (void)mapped(*ends.server, memory[i]);
    }
    EXPECT_RESULT(map(*ends.server, memory[3], offset), -FI_ENOSPC);
    unmapped(*ends.server, *ends.client, memory[1]);
    (void)mapped(*ends.server, memory[3]);
    both_ways_still_work(ends);
}

void test_hundreds_of_maps_are_known_before_what_is_sent_after_them() {
    constexpr size_t count = 600;
    Ends ends(count);
    std::vector<Bytes> memory(count, Bytes(64));
    std::vector<uint64_t> offsets(count);
    for (size_t i = 0; i < count; ++i) {
        offsets[i] = mapped(*ends.server, memory[i]); // more at once than there is credit for
    }
    pass_a_byte(*ends.server, *ends.client);
    for (size_t i = 0; i < count; ++i) {
        write_all(*ends.client, *ends.server, &i, sizeof(i), offsets[i] + 8);
    }
    pass_a_byte(*ends.client, *ends.server);
    for (size_t i = 0; i < count; ++i) {
        EXPECT(memcmp(memory[i].data() + 8, &i, sizeof(i)) == 0);
        unmapped(*ends.server, *ends.client, memory[i]);
    }
    both_ways_still_work(ends);
}

void test_a_local_map_is_no_business_of_the_peer() {
    Ends ends(1);
    Bytes memory(1000);
    Bytes more(1000);
    uint64_t offset = 500;
    EXPECT_RESULT(map(*ends.server, memory, offset, 0), 0);
    EXPECT_EQ(offset, 500U);
    offset = anywhere;
    EXPECT_RESULT(map(*ends.server, more, offset, 0), 0);
    pass_a_byte(*ends.server, *ends.client);
    EXPECT_RESULT(write(*ends.client, "x", 1, 500), -FI_EINVAL);
    EXPECT_RESULT(unmap(*ends.server, memory), 0);
    EXPECT_RESULT(unmap(*ends.server, memory), -FI_EINVAL);
    both_ways_still_work(ends);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_what_was_written_is_there_with_the_next_byte),
        FABTEST(test_writes_and_the_stream_share_the_send_buffer_in_order),
        FABTEST(test_a_write_is_taken_as_far_as_there_is_room),
        FABTEST(test_many_small_writes_behind_a_full_stream_arrive),
        FABTEST(test_pieces_with_more_behind_them_arrive),
        FABTEST(test_small_writes_now_and_then_arrive_without_any_other_call),
        FABTEST(test_offsets_are_given_or_chosen),
        FABTEST(test_the_same_offsets_serve_both_directions),
        FABTEST(test_offsets_that_are_taken_or_out_of_range_are_refused),
        FABTEST(test_arguments_that_make_no_sense_are_refused),
        FABTEST(test_an_endpoint_that_is_not_connected_maps_nothing),
        FABTEST(test_the_number_of_maps_is_an_option),
        FABTEST(test_the_peer_says_how_many_maps_there_may_be),
        FABTEST(test_hundreds_of_maps_are_known_before_what_is_sent_after_them),
        FABTEST(test_a_local_map_is_no_business_of_the_peer),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
