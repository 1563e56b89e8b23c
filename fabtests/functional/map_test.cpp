// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Maps: memory that the peer writes to beside the stream. What each operation returns; that what was written is there
// when the next byte of the stream is; that nothing outside of a map, or after it, is ever touched, and no such attempt
// does harm to the connection.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>

#include "fabtests/common/streams.hpp"
#include "fabtests/common/test.hpp"

namespace {

using namespace fabtests;

using Bytes = std::vector<unsigned char>;

constexpr uint64_t anywhere = FI_RSTREAM_MAP_ANY;

fi_ops_rstream_map& ops_of(Stream& s) {
    void* ops = nullptr;
    check("fi_open_ops", fi_open_ops(&s.ep->fid, FI_RSTREAM_MAP_OPS, 0, &ops, nullptr));
    return *static_cast<fi_ops_rstream_map*>(ops);
}

int map(Stream& s, Bytes& memory, uint64_t& offset, uint64_t access = FI_REMOTE_WRITE) {
    return ops_of(s).map(s.get(), memory.data(), memory.size(), access, &offset);
}
uint64_t mapped(Stream& s, Bytes& memory, uint64_t offset = anywhere) {
    EXPECT_RESULT(map(s, memory, offset), 0);
    return offset;
}
int unmap(Stream& s, Bytes& memory, uint64_t flags = 0) {
    return ops_of(s).unmap(s.get(), memory.data(), memory.size(), flags);
}
ssize_t write(Stream& s, const void* data, size_t length, uint64_t offset, uint64_t flags = 0) {
    return ops_of(s).write(s.get(), data, length, offset, flags);
}

// Two ends of one thread that know of so many maps of each other's.
struct Ends {
    explicit Ends(size_t maps = 16, size_t buffers = 0) : host(here()), listener(host) {
        client = std::make_unique<Stream>(host);
        prepare(*client, maps, buffers);
        client->connect(listener.name().data());
        const Info info(host.expect(FI_CONNREQ, &listener.pep->fid).info);
        server = std::make_unique<Stream>(host, info.get());
        prepare(*server, maps, buffers);
        server->accept();
        for (int i = 0; i < 2; ++i) {
            EXPECT_EQ(host.next_event().type, FI_CONNECTED);
        }
    }
    ~Ends() {
        client.reset();
        server.reset();
    }
    static void prepare(Stream& s, size_t maps, size_t buffers) {
        s.set_option(FI_OPT_RSTREAM_MAPS, maps);
        s.set_buffers(buffers);
    }

    Host host;
    Listener listener;
    std::unique_ptr<Stream> client;
    std::unique_ptr<Stream> server;
};

// Lets both ends work until that is so.
template <class So> void until(Stream& a, Stream& b, So so) {
    for (const auto start = Clock::now(); !so();) {
        (void)peek_recv(a);
        (void)peek_recv(b);
        EXPECT(milliseconds_since(start) < patience(10000));
    }
}

// All of it, with both ends at work.
void write_all(Stream& from, Stream& to, const void* data, size_t length, uint64_t offset) {
    size_t written = 0;
    until(from, to, [&] {
        const ssize_t n = write(from, static_cast<const char*>(data) + written, length - written, offset + written);
        EXPECT(n > 0 || n == -FI_EAGAIN || written == length);
        written += static_cast<size_t>(std::max<ssize_t>(n, 0));
        return written == length;
    });
}

// One byte of the stream: what is known on one side now is known on the other.
void pass_a_byte(Stream& from, Stream& to) {
    char byte = 7;
    from.send_all(&byte, 1);
    byte = 0;
    until(from, to, [&] { return recv(to, &byte, 1) == 1; });
    EXPECT_EQ(byte, '\7');
}

void unmapped(Stream& s, Stream& peer, Bytes& memory) {
    until(s, peer, [&] {
        const int ret = unmap(s, memory);
        EXPECT(ret == 0 || ret == -FI_EAGAIN);
        return ret == 0;
    });
}

Bytes noise(size_t length, unsigned seed) {
    std::mt19937 dice(seed);
    Bytes bytes(length);
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<unsigned char>(dice()); });
    return bytes;
}

void both_ways_still_work(Ends& ends) { exchange_bytes(*ends.client, *ends.server, 100000); }

// Ends what threads do until then, on every way out.
struct Until {
    ~Until() { over = true; }
    std::atomic<bool>& over;
};

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
        // Bytes that the peer has no room for, a write behind them, and a marker behind that.
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

// ---- outside of a map, and after it

void test_a_write_outside_of_a_map_fails_and_touches_nothing() {
    Ends ends;
    Bytes all(3000, 0x55);
    const Bytes before = all;
    uint64_t offset = 10000;
    EXPECT_RESULT(ops_of(*ends.server).map(ends.server->get(), all.data() + 1000, 1000, FI_REMOTE_WRITE, &offset), 0);
    EXPECT_RESULT(write(*ends.client, "x", 1, 0), -FI_EINVAL);
    pass_a_byte(*ends.server, *ends.client);
    const Bytes data(5000, 0xee);
    struct Try {
        uint64_t offset;
        size_t length;
    };
    for (const Try t : {Try{0, 1}, Try{9999, 1}, Try{9999, 2}, Try{11000, 1}, Try{10999, 2}, Try{10000, 1001},
                        Try{9000, 5000}, Try{UINT64_MAX, 1}, Try{UINT64_MAX - 10, 5000}, Try{uint64_t{1} << 63, 1}}) {
        EXPECT_RESULT(write(*ends.client, data.data(), t.length, t.offset), -FI_EINVAL);
    }
    EXPECT_RESULT(write(*ends.server, data.data(), 1, 10000), -FI_EINVAL); // that is ours, not the peer's
    EXPECT_RESULT(write(*ends.client, data.data(), 0, 10000), 0);
    pass_a_byte(*ends.client, *ends.server);
    EXPECT(all == before);
    both_ways_still_work(ends);
    EXPECT_RESULT(write(*ends.client, data.data(), 1000, 10000), 1000);
    pass_a_byte(*ends.client, *ends.server);
    EXPECT(std::all_of(all.begin() + 1000, all.begin() + 2000, [](unsigned char c) { return c == 0xee; }));
    EXPECT(memcmp(all.data(), before.data(), 1000) == 0 && memcmp(all.data() + 2000, before.data(), 1000) == 0);
}

void test_a_write_may_go_over_maps_that_follow_each_other() {
    Ends ends;
    Bytes a(1000);
    Bytes b(1000);
    (void)mapped(*ends.server, b, 2000);
    (void)mapped(*ends.server, a, 1000);
    pass_a_byte(*ends.server, *ends.client);
    const Bytes data = noise(2000, 2);
    EXPECT_RESULT(write(*ends.client, data.data(), 2001, 1000), -FI_EINVAL);
    EXPECT_RESULT(write(*ends.client, data.data(), 2000, 1000), 2000);
    EXPECT_RESULT(write(*ends.client, data.data(), 8, 1996), 8);
    pass_a_byte(*ends.client, *ends.server);
    Bytes expected = data;
    std::copy(data.begin(), data.begin() + 8, expected.begin() + 996);
    EXPECT(std::equal(a.begin(), a.end(), expected.begin()));
    EXPECT(std::equal(b.begin(), b.end(), expected.begin() + 1000));
}

void test_a_write_after_unmap_fails_at_the_writer_alone() {
    Ends ends;
    for (int round = 0; round < 50; ++round) {
        Bytes memory(1000, 1);
        const uint64_t offset = mapped(*ends.server, memory, round % 2 == 0 ? 4096 : anywhere);
        pass_a_byte(*ends.server, *ends.client);
        EXPECT_RESULT(write(*ends.client, "written", 7, offset), 7);
        unmapped(*ends.server, *ends.client, memory);
        EXPECT(memcmp(memory.data(), "written", 7) == 0); // what was on its way is there before
        const Bytes before = memory;
        EXPECT_RESULT(write(*ends.client, "late", 4, offset), -FI_EINVAL);
        EXPECT_RESULT(unmap(*ends.server, memory), -FI_EINVAL);
        pass_a_byte(*ends.client, *ends.server);
        EXPECT(memory == before);
    }
    both_ways_still_work(ends);
}

// The peer may write at any time up to its answer, and does.
void test_nothing_is_written_once_unmap_has_returned() {
    Ends ends;
    for (int round = 0; round < 300; ++round) {
        Bytes memory(20000, 1);
        const uint64_t offset = mapped(*ends.server, memory);
        pass_a_byte(*ends.server, *ends.client);
        const Bytes data = noise(memory.size(), static_cast<unsigned>(round));
        bool refused = false;
        int ret = -FI_EAGAIN;
        const auto start = Clock::now();
        while (ret != 0 || !refused) {
            ssize_t n = write(*ends.client, data.data(), 1 + data.size() / (1 + round % 7), offset);
            refused = n == -FI_EINVAL;
            EXPECT(n > 0 || n == -FI_EAGAIN || refused);
            (void)peek_recv(*ends.client);
            if (ret != 0) {
                ret = unmap(*ends.server, memory);
                EXPECT(ret == 0 || ret == -FI_EAGAIN);
                if (ret == 0) {
                    std::fill(memory.begin(), memory.end(), 0x77);
                }
            }
            EXPECT(milliseconds_since(start) < patience(10000));
        }
        pass_a_byte(*ends.client, *ends.server);
        EXPECT(std::all_of(memory.begin(), memory.end(), [](unsigned char c) { return c == 0x77; }));
    }
    both_ways_still_work(ends);
}

void test_unmap_does_not_wait_for_a_stream_that_nobody_reads() {
    Ends ends(16, 8192);
    Bytes memory(1000, 1);
    const uint64_t offset = mapped(*ends.server, memory);
    pass_a_byte(*ends.server, *ends.client);
    // More than the peer's window, less than that and the send buffer; writes behind it.
    Pattern out(5);
    Pattern in(5);
    uint64_t sent = 0;
    const auto feed = [&](uint64_t total) {
        until(*ends.client, *ends.server, [&] {
            std::vector<char> piece(std::min<uint64_t>(512, total - sent));
            Pattern again = out;
            again.fill(piece.data(), piece.size());
            const ssize_t n = send(*ends.client, piece.data(), piece.size());
            if (n > 0) {
                out.fill(piece.data(), static_cast<size_t>(n));
                sent += static_cast<uint64_t>(n);
            }
            return sent == total;
        });
    };
    feed(8192 + 2048);
    EXPECT_RESULT(write(*ends.client, memory.data(), 300, offset), 300);
    EXPECT_RESULT(write(*ends.client, memory.data(), 300, offset + 500), 300);
    feed(sent + 100);
    EXPECT_RESULT(write(*ends.client, memory.data(), 300, offset), 300);
    unmapped(*ends.server, *ends.client, memory);
    std::fill(memory.begin(), memory.end(), 0x77);
    EXPECT_RESULT(write(*ends.client, memory.data(), 1, offset), -FI_EINVAL);
    uint64_t received = 0;
    until(*ends.client, *ends.server, [&] {
        std::vector<char> some(3000);
        const ssize_t n = recv(*ends.server, some.data(), some.size());
        if (n > 0) {
            in.check(some.data(), static_cast<size_t>(n));
            received += static_cast<uint64_t>(n);
        }
        return received == sent;
    });
    // What was dropped takes no room.
    until(*ends.client, *ends.server, [&] { return peek_send(*ends.client) == 8192; });
    EXPECT(std::all_of(memory.begin(), memory.end(), [](unsigned char c) { return c == 0x77; }));
    both_ways_still_work(ends);
}

void test_unmap_wakes_who_sleeps_for_it() {
    Ends ends;
    Bytes memory(1000);
    uint64_t offset = mapped(*ends.server, memory);
    pass_a_byte(*ends.server, *ends.client);
    std::atomic<bool> stop{false};
    Threads threads;
    threads.start([&] { // the peer's own work
        while (!stop) {
            (void)peek_recv(*ends.client);
            (void)ends.client->wait(10);
        }
    });
    const Until end{stop};
    for (int i = 0; i < 50; ++i) {
        int ret = 0;
        while ((ret = unmap(*ends.server, memory)) == -FI_EAGAIN) {
            EXPECT(ends.server->wait(20000));
        }
        EXPECT_RESULT(ret, 0);
        offset = mapped(*ends.server, memory);
    }
    stop = true;
    threads.join();
    pass_a_byte(*ends.server, *ends.client);
    EXPECT_RESULT(write(*ends.client, "x", 1, offset), 1);
    // Given up: the answer is no news to those who wait for something else.
    EXPECT_RESULT(unmap(*ends.server, memory), -FI_EAGAIN);
    EXPECT_RESULT(unmap(*ends.server, memory, FI_RSTREAM_UNATTENDED), -FI_EAGAIN);
    until(*ends.client, *ends.server, [&] { return write(*ends.client, "x", 1, offset) == -FI_EINVAL; });
    pass_a_byte(*ends.client, *ends.server); // and so has the answer come
    EXPECT_RESULT(peek_recv(*ends.server), -FI_EAGAIN);
    EXPECT_RESULT(try_wait(ends.host, &ends.server->ep->fid), 0);
    EXPECT_RESULT(unmap(*ends.server, memory), 0);
}

void test_the_same_memory_can_be_mapped_twice() {
    Ends ends;
    Bytes memory(100);
    (void)mapped(*ends.server, memory, 0);
    (void)mapped(*ends.server, memory, 1000);
    pass_a_byte(*ends.server, *ends.client);
    EXPECT_RESULT(write(*ends.client, "a", 1, 0), 1);
    EXPECT_RESULT(write(*ends.client, "b", 1, 1001), 1);
    pass_a_byte(*ends.client, *ends.server);
    EXPECT(memcmp(memory.data(), "ab", 2) == 0);
    unmapped(*ends.server, *ends.client, memory);
    unmapped(*ends.server, *ends.client, memory);
    EXPECT_RESULT(unmap(*ends.server, memory), -FI_EINVAL);
}

// ---- the end

void test_maps_end_with_the_sending_of_the_peer() {
    Ends ends;
    Bytes memory(1000);
    const uint64_t offset = mapped(*ends.server, memory);
    Bytes other(1000);
    const uint64_t back = mapped(*ends.client, other);
    pass_a_byte(*ends.server, *ends.client);
    pass_a_byte(*ends.client, *ends.server);
    EXPECT_RESULT(write(*ends.client, "last", 4, offset), 4);
    EXPECT_RESULT(fi_shutdown(ends.client->get(), FI_RSTREAM_SHUT_WR), 0);
    EXPECT_RESULT(write(*ends.client, "x", 1, offset), -FI_EPIPE);
    char byte = 0;
    EXPECT_RESULT(ends.server->recv_some(&byte, 1), 0);
    EXPECT(memcmp(memory.data(), "last", 4) == 0);
    EXPECT_RESULT(unmap(*ends.server, memory), 0); // it has said that it sends nothing
    // The other direction goes on.
    EXPECT_RESULT(write(*ends.server, "on", 2, back), 2);
    pass_a_byte(*ends.server, *ends.client);
    EXPECT(memcmp(other.data(), "on", 2) == 0);
    unmapped(*ends.client, *ends.server, other);
    EXPECT_RESULT(write(*ends.server, "x", 1, back), -FI_EINVAL);
    pass_a_byte(*ends.server, *ends.client);
}

void test_unmap_at_the_end_of_the_connection_needs_no_answer() {
    for (const bool abort : {false, true}) {
        Ends ends;
        Bytes memory(1000);
        Bytes second(1000);
        (void)mapped(*ends.server, memory);
        (void)mapped(*ends.server, second);
        pass_a_byte(*ends.server, *ends.client);
        EXPECT_RESULT(unmap(*ends.server, memory), -FI_EAGAIN); // asked, and not answered
        if (abort) {
            EXPECT_RESULT(fi_shutdown(ends.client->get(), FI_RSTREAM_ABORT), 0);
        }
        ends.client.reset();
        int ret = 0;
        while ((ret = unmap(*ends.server, memory)) == -FI_EAGAIN) {
            EXPECT(ends.server->wait(20000));
        }
        EXPECT_RESULT(ret, 0);
        EXPECT_RESULT(unmap(*ends.server, second), 0);
    }
    Ends ends;
    Bytes memory(1000);
    (void)mapped(*ends.server, memory);
    EXPECT_RESULT(fi_shutdown(ends.server->get(), FI_RSTREAM_ABORT), 0);
    EXPECT_RESULT(unmap(*ends.server, memory), 0);
    uint64_t offset = anywhere;
    EXPECT_RESULT(map(*ends.server, memory, offset), -FI_ECONNABORTED);
}

void test_close_gives_the_memory_back() {
    Ends ends;
    auto memory = std::make_unique<Bytes>(100000, 1);
    const uint64_t offset = mapped(*ends.server, *memory);
    pass_a_byte(*ends.server, *ends.client);
    std::atomic<bool> stop{false};
    Threads threads;
    threads.start([&] {
        const Bytes data = noise(50000, 1);
        while (!stop) {
            (void)write(*ends.client, data.data(), data.size(), offset);
            (void)peek_recv(*ends.client);
        }
    });
    const Until end{stop};
    ends.server->send_all("what was sent before is delivered", 33);
    const auto start = Clock::now();
    ends.server.reset();
    std::fill(memory->begin(), memory->end(), 0x77);
    EXPECT(milliseconds_since(start) < patience(2500)); // the peer has answered
    std::string text(33, 0);
    stop = true;
    threads.join();
    EXPECT_EQ(ends.client->recv_all(text.data(), 33), 33U);
    EXPECT_EQ(text, "what was sent before is delivered");
    EXPECT(std::all_of(memory->begin(), memory->end(), [](unsigned char c) { return c == 0x77; }));
    memory.reset(); // under a sanitizer, a late write would show
    (void)peek_recv(*ends.client);
}

void test_close_does_not_wait_for_ever_for_a_peer_that_is_away() {
    Ends ends;
    Bytes memory(1000, 1);
    const uint64_t offset = mapped(*ends.server, memory);
    pass_a_byte(*ends.server, *ends.client);
    ends.server->set_option(FI_OPT_RSTREAM_LINGER, 200);
    const auto start = Clock::now();
    ends.server.reset();
    EXPECT(milliseconds_since(start) < patience(5000));
    const Bytes before = memory;
    ssize_t n = 0;
    until(*ends.client, *ends.client, [&] {
        n = write(*ends.client, "late", 4, offset);
        return n < 0 && n != -FI_EAGAIN;
    });
    EXPECT(memory == before);
}

// ---- threads

void test_threads_write_map_and_send_at_once() {
    Ends ends(64);
    constexpr size_t writers = 3;
    constexpr int rounds = 50;
    std::vector<Bytes> memory(writers, Bytes(30000));
    std::vector<uint64_t> offsets;
    for (Bytes& one : memory) {
        offsets.push_back(mapped(*ends.server, one));
    }
    pass_a_byte(*ends.server, *ends.client);
    std::atomic<size_t> left{writers};
    Threads threads;
    for (size_t i = 0; i < writers; ++i) {
        threads.start([&, i] {
            for (int round = 0; round < rounds; ++round) {
                const Bytes data(memory[i].size(), static_cast<unsigned char>(round + 1));
                for (size_t at = 0; at < data.size();) {
                    const ssize_t n = write(*ends.client, data.data() + at,
                                            std::min<size_t>(data.size() - at, 20 + 200 * i * round), offsets[i] + at);
                    EXPECT(n > 0 || n == -FI_EAGAIN);
                    at += static_cast<size_t>(std::max<ssize_t>(n, 0));
                    if (n == -FI_EAGAIN) {
                        (void)ends.client->wait(10);
                    }
                }
            }
            --left;
        });
    }
    threads.start([&] { // maps that come and go
        while (left != 0) {
            Bytes passing(5000);
            (void)mapped(*ends.server, passing);
            int ret = 0;
            while ((ret = unmap(*ends.server, passing)) == -FI_EAGAIN) {
                (void)ends.server->wait(10);
            }
            EXPECT_RESULT(ret, 0);
        }
    });
    threads.start([&] {
        while (left != 0) {
            (void)peek_recv(*ends.client);
            (void)peek_recv(*ends.server);
        }
    });
    threads.join();
    pass_a_byte(*ends.client, *ends.server);
    for (const Bytes& one : memory) {
        EXPECT(std::all_of(one.begin(), one.end(), [](unsigned char c) { return c == rounds; }));
    }
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
        FABTEST(test_offsets_are_given_or_chosen),
        FABTEST(test_the_same_offsets_serve_both_directions),
        FABTEST(test_offsets_that_are_taken_or_out_of_range_are_refused),
        FABTEST(test_arguments_that_make_no_sense_are_refused),
        FABTEST(test_an_endpoint_that_is_not_connected_maps_nothing),
        FABTEST(test_the_number_of_maps_is_an_option),
        FABTEST(test_the_peer_says_how_many_maps_there_may_be),
        FABTEST(test_hundreds_of_maps_are_known_before_what_is_sent_after_them),
        FABTEST(test_a_local_map_is_no_business_of_the_peer),
        FABTEST(test_a_write_outside_of_a_map_fails_and_touches_nothing),
        FABTEST(test_a_write_may_go_over_maps_that_follow_each_other),
        FABTEST(test_a_write_after_unmap_fails_at_the_writer_alone),
        FABTEST(test_nothing_is_written_once_unmap_has_returned),
        FABTEST(test_unmap_does_not_wait_for_a_stream_that_nobody_reads),
        FABTEST(test_unmap_wakes_who_sleeps_for_it),
        FABTEST(test_the_same_memory_can_be_mapped_twice),
        FABTEST(test_maps_end_with_the_sending_of_the_peer),
        FABTEST(test_unmap_at_the_end_of_the_connection_needs_no_answer),
        FABTEST(test_close_gives_the_memory_back),
        FABTEST(test_close_does_not_wait_for_ever_for_a_peer_that_is_away),
        FABTEST(test_threads_write_map_and_send_at_once),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
