// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Maps: nothing outside of one, or after it, is ever touched, no such attempt does harm to the connection, and who
// mapped memory gets it back.
#include "fabtests/functional/maps.hpp"

namespace {

using namespace fabtests;

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
    // What was dropped takes no space.
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
    offsets.reserve(writers);
    for (Bytes& one : memory) {
        offsets.push_back(mapped(*ends.server, one));
    }
    pass_a_byte(*ends.server, *ends.client);
    std::atomic<size_t> left{writers};
    std::atomic<bool> mapping{true};
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
        mapping = false;
    });
    threads.start([&] { // until the last unmap has its answer
        while (left != 0 || mapping) {
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
