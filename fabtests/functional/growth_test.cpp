// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Buffers that grow: of a busy stream whose program set no size, when the window is what holds it up, and never
// otherwise; and that shrink again when it is idle. What fi_getopt says of them, and that every byte arrives while they
// do.
#include <algorithm>
#include <atomic>

#include <poll.h>
#include <sys/resource.h>

#include "fabtests/common/child.hpp"
#include "fabtests/common/streams.hpp"
#include "fabtests/common/test.hpp"

namespace {

using namespace fabtests;

constexpr size_t small = 32768;
constexpr size_t largest = 524288;
constexpr uint64_t plenty = 16000003; // bytes after which all has grown that may
constexpr size_t piece = 3000017;     // more than any buffer takes

size_t send_size(Stream& s) { return s.get_option(FI_OPT_SEND_BUF_SIZE); }
size_t recv_size(Stream& s) { return s.get_option(FI_OPT_RECV_BUF_SIZE); }

Pair connected(size_t buffers = 0) { return Pair(core_name(), buffers, node_name()); }

void test_a_busy_stream_gets_larger_buffers() {
    auto pair = connected();
    EXPECT_EQ(recv_size(*pair.server), small);
    EXPECT_EQ(send_size(*pair.client), small);
    move_bytes(*pair.client, *pair.server, plenty, piece);
    EXPECT_EQ(recv_size(*pair.server), largest);
    EXPECT(send_size(*pair.client) > small);
    EXPECT(send_size(*pair.client) <= largest);
    // The other direction was idle.
    EXPECT_EQ(send_size(*pair.server), small);
    EXPECT_EQ(recv_size(*pair.client), small);
    exchange_bytes(*pair.client, *pair.server, plenty, piece, 2);
    EXPECT_EQ(recv_size(*pair.client), largest);
}

void test_both_directions_grow_at_once() {
    auto pair = connected();
    exchange_bytes(*pair.client, *pair.server, plenty, piece);
    for (Stream* s : {pair.client.get(), pair.server.get()}) {
        EXPECT_EQ(recv_size(*s), largest);
        EXPECT(send_size(*s) > small);
    }
}

void test_an_idle_stream_stays_small() {
    auto pair = connected();
    // Requests and answers that the window never holds up.
    for (int i = 0; i < 500; ++i) {
        exchange_bytes(*pair.client, *pair.server, 4001, 4001);
    }
    for (Stream* s : {pair.client.get(), pair.server.get()}) {
        EXPECT_EQ(recv_size(*s), small);
        EXPECT_EQ(send_size(*s), small);
    }
}

// One end's bytes, in calls of any length.
class Writer {
  public:
    Writer(Stream& stream, uint64_t seed) : stream_(stream), out_(seed) {}
    void fill() {
        while (some(piece) != -FI_EAGAIN) {
        }
    }
    // One call, of `length` bytes.
    ssize_t some(size_t length) {
        if (bytes_.size() - at_ < length) {
            bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<ptrdiff_t>(at_));
            at_ = bytes_.size();
            bytes_.resize(at_ + piece);
            out_.fill(&bytes_[at_], piece);
            at_ = 0;
        }
        const ssize_t n = send(stream_, &bytes_[at_], length);
        if (n != -FI_EAGAIN) {
            at_ += static_cast<size_t>(check("fi_send", n));
            sent += static_cast<uint64_t>(n);
        }
        return n;
    }
    uint64_t sent = 0;

  private:
    Stream& stream_;
    Pattern out_;
    std::vector<char> bytes_;
    size_t at_ = 0;
};

// A larger buffer would not make a slow reader faster.
void test_a_reader_that_is_behind_gets_no_larger_buffer() {
    need_core("tcp"); // elsewhere what was sent is not there at once, and the reader does wait
    if (const char* immediates = getenv("FI_RSTREAM_IMMEDIATES"); immediates != nullptr && *immediates == '0') {
        throw Skip("without immediates, what was sent is not there at once");
    }
    auto pair = connected();
    Writer writer(*pair.client, 1);
    Pattern in(1);
    std::vector<char> buffer(small / 2);
    uint64_t got = 0;
    while (writer.sent < 4000000) {
        writer.fill();
        // There is always something to read, so it never waits.
        const ssize_t n = check("fi_recv", recv(*pair.server, buffer.data(), buffer.size()));
        in.check(buffer.data(), static_cast<size_t>(n));
        got += static_cast<uint64_t>(n);
        while (check("fi_recvmsg", peek_recv(*pair.server)) < static_cast<ssize_t>(small / 2)) {
            writer.fill();
        }
    }
    EXPECT_EQ(recv_size(*pair.server), small);
    drain_checked(*pair.client, *pair.server, in, writer.sent - got);
}

void test_sizes_that_were_set_stay() {
    for (const size_t size : {size_t{4096}, small, size_t{65536}}) {
        auto pair = connected(size);
        exchange_bytes(*pair.client, *pair.server, plenty / 8, 65536);
        for (Stream* s : {pair.client.get(), pair.server.get()}) {
            EXPECT_EQ(recv_size(*s), size);
            EXPECT_EQ(send_size(*s), size);
        }
    }
}

// Connects two ends of which one has a receive buffer, or a send buffer, that was set.
void test_one_buffer_that_was_set_stays_and_the_others_grow() {
    Host host(here());
    const Listener listener(host);
    Stream client(host);
    client.set_option(FI_OPT_SEND_BUF_SIZE, 20000);
    client.connect(listener.name().data());
    const Info info(host.expect(FI_CONNREQ, &listener.pep->fid).info);
    Stream server(host, info.get());
    server.accept();
    for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(host.next_event().type, static_cast<uint32_t>(FI_CONNECTED));
    }
    exchange_bytes(client, server, plenty, piece);
    EXPECT_EQ(send_size(client), 20000U);
    EXPECT_EQ(recv_size(client), largest);
    EXPECT(send_size(server) > small);
}

// The send buffer follows a receive buffer that was large from the start.
void test_the_send_buffer_follows_a_larger_receive_buffer() {
    Host host(here());
    const Listener listener(host);
    Stream client(host);
    client.connect(listener.name().data());
    const Info info(host.expect(FI_CONNREQ, &listener.pep->fid).info);
    Stream server(host, info.get());
    server.set_option(FI_OPT_RECV_BUF_SIZE, 200000);
    server.accept();
    for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(host.next_event().type, static_cast<uint32_t>(FI_CONNECTED));
    }
    move_bytes(client, server, plenty, piece);
    EXPECT_EQ(recv_size(server), 200000U);
    EXPECT(send_size(client) >= 200000U); // more if both were full at once
}

void test_the_room_that_was_promised_is_there_while_buffers_grow() {
    auto pair = connected();
    Writer writer(*pair.client, 3);
    Pattern in(3);
    std::vector<char> buffer(2 * largest);
    uint64_t got = 0;
    while (writer.sent < plenty) {
        const ssize_t space = peek_send(*pair.client);
        if (space > 0) {
            EXPECT(writer.some(static_cast<size_t>(space)) == space);
        }
        writer.fill();
        for (ssize_t there = 0; (there = peek_recv(*pair.server)) > 0;) {
            EXPECT(recv_message(*pair.server, {{buffer.data(), buffer.size()}}, FI_PEEK) >= there);
            const ssize_t n = recv(*pair.server, buffer.data(), static_cast<size_t>(there));
            EXPECT_RESULT(n, there);
            in.check(buffer.data(), static_cast<size_t>(n));
            got += static_cast<uint64_t>(n);
        }
    }
    EXPECT_EQ(recv_size(*pair.server), largest);
    drain_checked(*pair.client, *pair.server, in, writer.sent - got);
}

// Programs that sleep instead of asking again and again: a sender and a receiver at each end.
void test_buffers_grow_under_programs_that_sleep() {
    auto pair = connected();
    std::atomic<int> received{0};
    const auto sender = [&](Stream& s, size_t piece, uint64_t seed) {
        send_pattern(s, plenty, piece, seed);
        while (received < 2) { // keeps its end moving until all have all
            (void)peek_send(s);
            (void)s.wait(20);
        }
    };
    const auto receiver = [&](Stream& s, uint64_t seed) {
        try {
            recv_pattern(s, plenty, 65536, seed);
        } catch (...) {
            received = 2;
            throw;
        }
        ++received;
    };
    Threads threads;
    threads.start([&] { sender(*pair.client, piece, 1); });
    threads.start([&] { sender(*pair.server, 30011, 2); });
    threads.start([&] { receiver(*pair.client, 2); });
    threads.start([&] { receiver(*pair.server, 1); });
    threads.join();
    EXPECT(recv_size(*pair.server) > small);
    EXPECT(recv_size(*pair.client) > small);
}

void test_what_was_sent_arrives_though_the_sender_closes_while_buffers_grow() {
    for (uint64_t total = 200000; total < 6000000; total += 301013) {
        auto pair = connected();
        Writer writer(*pair.client, 1);
        Pattern in(1);
        std::vector<char> buffer(65536);
        uint64_t got = 0;
        ssize_t n = 0;
        const auto take = [&] {
            while ((n = recv(*pair.server, buffer.data(), buffer.size())) > 0) {
                in.check(buffer.data(), static_cast<size_t>(n));
                got += static_cast<uint64_t>(n);
            }
        };
        while (writer.sent < total) {
            writer.fill();
            take();
        }
        EXPECT_RESULT(fi_shutdown(pair.client->get(), 0), 0);
        do {
            (void)peek_send(*pair.client);
            take();
        } while (n == -FI_EAGAIN);
        EXPECT_RESULT(n, 0);
        EXPECT_EQ(got, writer.sent);
    }
}

// Streams that have grown leave nothing behind but what a first one has left too.
void test_larger_buffers_are_given_back() {
    Host host(here());
    // A closed end may wait in the background for the peer's last word; the queue's reader lets go of it.
    const auto settled_fds = [&](size_t wanted) {
        const auto start = Clock::now();
        while (open_fds() > wanted && milliseconds_since(start) < patience(5000)) {
            uint32_t event = 0;
            (void)fi_eq_read(host.eq.get(), &event, nullptr, 0, FI_PEEK);
        }
        return open_fds();
    };
    size_t fds = 0;
    size_t maps = 0;
    for (int i = 0; i < 12; ++i) {
        Pair pair(host, 0);
        // Made when they are first asked for: here, so that it does not depend on whether a round has had to wait.
        (void)wait_fd(&pair.client->ep->fid);
        (void)wait_fd(&pair.server->ep->fid);
        move_bytes(*pair.client, *pair.server, 8000009, piece);
        EXPECT(recv_size(*pair.server) > small);
        if (i == 5) {
            fds = open_fds();
            maps = mappings();
        }
        if (i == 11) {
            EXPECT(settled_fds(fds) <= fds);
            EXPECT(mappings() <= maps + 3); // the heap's own
        }
    }
}

// ---- By the environment

// Arguments: the sizes that the receive and the send buffer must have in the end; 0: any that is larger than at first;
// "any": it depends on whether both were full at once.
void play_growing(const std::vector<std::string>& arguments) {
    Pair pair(core_name(), 0, node_name());
    move_bytes(*pair.client, *pair.server, plenty / 2, piece);
    const auto expect = [](size_t got, const std::string& wanted) {
        EXPECT(wanted == "any" || (wanted == "0" ? got > small : got == std::stoul(wanted)));
    };
    expect(recv_size(*pair.server), arguments.at(0));
    expect(send_size(*pair.client), arguments.at(1));
}

void test_the_environment_sets_how_large_they_grow() {
    run_in_child("growing", {"FI_RSTREAM_MAX_BUF_SIZE=262144"}, {"262144", "0"});
    run_in_child("growing", {"FI_RSTREAM_MAX_BUF_SIZE=40000"}, {"40000", "0"});
    run_in_child("growing", {"FI_RSTREAM_MAX_BUF_SIZE=0"}, {"32768", "32768"});
    run_in_child("growing", {"FI_RSTREAM_MAX_BUF_SIZE=4096"}, {"32768", "32768"});
    run_in_child("growing", {"FI_RSTREAM_MAX_BUF_SIZE=1073741825"}, {"524288", "0"}); // out of range: ignored
}

void test_a_size_of_the_environment_stays() {
    run_in_child("growing", {"FI_RSTREAM_RECV_BUF_SIZE=32768"}, {"32768", "any"});
    run_in_child("growing", {"FI_RSTREAM_SEND_BUF_SIZE=8192"}, {"32768", "8192"});
}

void test_buffers_grow_without_immediates() { run_in_child("growing", {"FI_RSTREAM_IMMEDIATES=0"}, {"0", "0"}); }

// Both ends make calls, or sleep, until the sizes are as they should be.
template <class Sized> void idle_until(Pair& pair, bool sleep, const Sized& sized) {
    const auto start = Clock::now();
    while (!sized() && milliseconds_since(start) < patience(20000)) {
        pollfd fds[2] = {};
        size_t armed = 0;
        for (Stream* s : {pair.client.get(), pair.server.get()}) {
            EXPECT_RESULT(peek_recv(*s), -FI_EAGAIN);
            if (sleep && try_wait(s->host, &s->ep->fid) == 0) {
                fds[armed++] = {wait_fd(&s->ep->fid), POLLIN, 0};
            }
        }
        if (armed == 2 && !sized()) { // nobody else wakes them
            EXPECT(poll(fds, 2, static_cast<int>(patience(20000))) > 0);
        }
    }
    EXPECT(sized());
}

// Arguments: "sleep", or nothing.
void play_shrinking(const std::vector<std::string>& arguments) {
    const bool sleep = !arguments.empty();
    Pair pair(core_name(), 0, node_name());
    const auto all_small = [&] {
        return send_size(*pair.client) == small && recv_size(*pair.client) == small &&
               send_size(*pair.server) == small && recv_size(*pair.server) == small;
    };
    (void)wait_fd(&pair.client->ep->fid);
    (void)wait_fd(&pair.server->ep->fid);
    const size_t fds = open_fds();
    size_t maps = 0;
    for (int i = 0; i < 6; ++i) {
        exchange_bytes(*pair.client, *pair.server, plenty / 4, piece, static_cast<uint64_t>(2 * i));
        EXPECT(recv_size(*pair.client) > small || recv_size(*pair.server) > small);
        idle_until(pair, sleep, [&] { return all_small() && open_fds() == fds; });
        if (i == 2) {
            maps = mappings();
        }
    }
    EXPECT(mappings() <= maps + 8); // the addresses of earlier rings are used again
}

void test_idle_buffers_shrink_and_grow_again() {
    run_in_child("shrinking", {"FI_RSTREAM_SHRINK_TIMEOUT=30"}, {});
    run_in_child("shrinking", {"FI_RSTREAM_SHRINK_TIMEOUT=30"}, {"sleep"});
    run_in_child("shrinking", {"FI_RSTREAM_SHRINK_TIMEOUT=30", "FI_RSTREAM_IMMEDIATES=0"}, {"sleep"});
}

// Data flows while buffers shrink: with a timeout of some milliseconds, they do so in each short pause. With a shorter
// one, they would in the emulator also shrink during a transfer, and be small before the pause.
void play_pausing(const std::vector<std::string>& /*arguments*/) {
    Pair pair(core_name(), 0, node_name());
    bool grown = false; // on a core whose window never holds up so little, it does not
    bool shrunk = false;
    const auto start = Clock::now();
    for (uint64_t i = 0; i < 60 || (grown && !shrunk && milliseconds_since(start) < patience(20000)); ++i) {
        exchange_bytes(*pair.client, *pair.server, 20011 + i * 10007, 30011, 2 * i);
        const size_t before = recv_size(*pair.server);
        grown = grown || before > small;
        const auto pause = Clock::now();
        const int length = patience(2 * static_cast<int>(i % 6)) + std::max(static_cast<int>(i) - 60, 0);
        do {
            (void)peek_recv(*pair.server);
            (void)peek_recv(*pair.client);
        } while (milliseconds_since(pause) < length);
        shrunk = shrunk || recv_size(*pair.server) < before;
    }
    EXPECT_EQ(shrunk, grown);
}

void test_bytes_arrive_while_buffers_shrink() {
    const std::string timeout = "FI_RSTREAM_SHRINK_TIMEOUT=" + std::to_string(patience(3));
    run_in_child("pausing", {timeout}, {});
    run_in_child("pausing", {timeout, "FI_RSTREAM_IMMEDIATES=0"}, {});
}

// Memory that is refused is none that the stream needs.
void play_refused(const std::vector<std::string>& /*arguments*/) {
    Pair pair(core_name(), 0, node_name());
    move_bytes(*pair.client, *pair.server, 10007, 1009);
    rlimit limit{};
    EXPECT_EQ(getrlimit(RLIMIT_AS, &limit), 0);
    limit.rlim_cur = address_space_bytes() + (size_t{40} << 20);
    EXPECT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
    move_bytes(*pair.client, *pair.server, size_t{10} * plenty, piece);
    EXPECT(recv_size(*pair.server) < size_t{1} << 30);
}

void test_a_stream_goes_on_without_the_memory_to_grow() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    throw Skip("a sanitizer does not run within a limit of address space");
#else
    run_in_child("refused", {"FI_RSTREAM_MAX_BUF_SIZE=1073741824"});
#endif
}

} // namespace

int main(int argc, char** argv) {
    const Role roles[] = {
        {"growing", play_growing}, {"shrinking", play_shrinking}, {"pausing", play_pausing}, {"refused", play_refused}};
    if (const auto status = play_role(argc, argv, roles)) {
        return *status;
    }
    const CMUnitTest tests[] = {
        FABTEST(test_a_busy_stream_gets_larger_buffers),
        FABTEST(test_both_directions_grow_at_once),
        FABTEST(test_an_idle_stream_stays_small),
        FABTEST(test_a_reader_that_is_behind_gets_no_larger_buffer),
        FABTEST(test_sizes_that_were_set_stay),
        FABTEST(test_one_buffer_that_was_set_stays_and_the_others_grow),
        FABTEST(test_the_send_buffer_follows_a_larger_receive_buffer),
        FABTEST(test_the_room_that_was_promised_is_there_while_buffers_grow),
        FABTEST(test_buffers_grow_under_programs_that_sleep),
        FABTEST(test_what_was_sent_arrives_though_the_sender_closes_while_buffers_grow),
        FABTEST(test_larger_buffers_are_given_back),
        FABTEST(test_the_environment_sets_how_large_they_grow),
        FABTEST(test_a_size_of_the_environment_stays),
        FABTEST(test_buffers_grow_without_immediates),
        FABTEST(test_idle_buffers_shrink_and_grow_again),
        FABTEST(test_bytes_arrive_while_buffers_shrink),
        FABTEST(test_a_stream_goes_on_without_the_memory_to_grow),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
