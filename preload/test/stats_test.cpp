// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The page of counters of a process under the preload library, as rsstat reads it: the connections in it, their bytes,
// paths and reasons. stats_processes_test has several processes.
#include <algorithm>
#include <bit>
#include <filesystem>
#include <string>
#include <utility>

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fabtests/common/test.hpp"
#include "preload/connection/state.hpp"
#include "preload/test/pair.hpp"
#include "preload/test/stats_page.hpp"

namespace {

using preload::Reason;
using namespace preload_test;

size_t open_descriptors() {
    size_t count = 0;
    for ([[maybe_unused]] const auto& one : std::filesystem::directory_iterator("/proc/self/fd")) {
        ++count;
    }
    return count;
}

// The first of all tests: the others have sockets.
void test_a_process_without_tcp_sockets_has_no_page() {
    EXPECT(!has_page(getpid()));
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    close(fd);
    EXPECT(!has_page(getpid()));
}

void test_the_page_has_no_descriptor() {
    const size_t before = open_descriptors();
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(listen(fd, 1), 0);
    EXPECT(has_page(getpid()));
    EXPECT_EQ(open_descriptors(), before + 1);
    EXPECT(socket_of(page_of(getpid()), fd).counters.role == base::stats::Role::listen);
    close(fd);
}

void test_an_upgraded_connection_is_shown() {
    const Pair pair;
    const ProcessView process = page_of(getpid());
    const SocketView& a = socket_of(process, pair.a);
    const SocketView& b = socket_of(process, pair.b);
    EXPECT(a.counters.role == base::stats::Role::connect);
    EXPECT(b.counters.role == base::stats::Role::accept);
    EXPECT_EQ(a.counters.path, both_ways);
    EXPECT_EQ(b.counters.path, both_ways);
    EXPECT_EQ(a.counters.upgrades, 1U);
    EXPECT(a.counters.in.buffer_bytes != 0);
    EXPECT_EQ(a.addresses.local, b.addresses.peer);
    EXPECT_EQ(a.addresses.peer, b.addresses.local);
    EXPECT(a.addresses.local.starts_with("127.0.0.1:"));
}

void test_bytes_and_calls_are_exact() {
    const Pair pair;
    const SocketView before = socket_of(page_of(getpid()), pair.a);
    const SocketView reader = socket_of(page_of(getpid()), pair.b);
    constexpr int calls = 100;
    constexpr size_t size = 1000;
    for (int i = 0; i < calls; ++i) {
        move_bytes(pair.a, pair.b, size);
    }
    const SocketView after = socket_of(page_of(getpid()), pair.a);
    EXPECT_EQ(after.counters.out.bytes - before.counters.out.bytes, calls * size);
    EXPECT_EQ(after.counters.out.path_bytes - before.counters.out.path_bytes, calls * size);
    EXPECT_EQ(after.counters.out.calls - before.counters.out.calls, calls);
    EXPECT_EQ(after.counters.in.bytes, before.counters.in.bytes);
    EXPECT_EQ(socket_of(page_of(getpid()), pair.b).counters.in.bytes - reader.counters.in.bytes, calls * size);
}

int directions_by_path(int fd) { return std::max(preload_test::path_of(fd) - 1, 0); }

// Until the connection is with the kernel, in both directions.
void return_to_kernel(const Pair& pair) {
    char byte = 0;
    EXPECT_EQ(recv(pair.a, &byte, 1, MSG_ERRQUEUE | MSG_DONTWAIT), -1); // which only the kernel has
    constexpr int most = 1000;
    for (int i = 0; i < most && directions_by_path(pair.a) + directions_by_path(pair.b) > 0; ++i) {
        pair.exchange();
        usleep(1000);
    }
    EXPECT_EQ(directions_by_path(pair.a), 0);
    EXPECT_EQ(directions_by_path(pair.b), 0);
}

void test_bytes_are_counted_on_the_path_that_they_take() {
    const Pair pair;
    struct Counts {
        rsstat::Traffic sent, received;
        explicit Counts(const Pair& pair) {
            const ProcessView process = page_of(getpid());
            sent = socket_of(process, pair.a).counters.out;
            received = socket_of(process, pair.b).counters.in;
        }
    };
    const auto expect = [](const Counts& before, const Counts& after, uint64_t bytes, uint64_t by_path) {
        EXPECT_EQ(after.sent.bytes - before.sent.bytes, bytes);
        EXPECT_EQ(after.sent.path_bytes - before.sent.path_bytes, by_path);
        EXPECT_EQ(after.received.bytes - before.received.bytes, bytes);
        EXPECT_EQ(after.received.path_bytes - before.received.path_bytes, by_path);
    };
    const Counts first(pair);
    move_bytes(pair.a, pair.b, 1000);
    const Counts second(pair);
    expect(first, second, 1000, 1000);
    EXPECT_EQ(second.sent.calls, first.sent.calls + 1);
    EXPECT_EQ(second.received.calls, first.received.calls + 1);
    // Both in one call of the reader.
    std::string data(150, 'x');
    EXPECT_EQ(send(pair.a, data.data(), 100, 0), 100);
    EXPECT_EQ(recv(pair.a, data.data(), 1, MSG_ERRQUEUE | MSG_DONTWAIT), -1);
    EXPECT_EQ(send(pair.a, data.data(), 50, 0), 50);
    EXPECT_EQ(recv(pair.b, data.data(), data.size(), 0), 150);
    const Counts third(pair);
    expect(second, third, 150, 100);
    EXPECT_EQ(third.sent.calls, second.sent.calls + 2);
    EXPECT_EQ(third.received.calls, second.received.calls + 1);
    return_to_kernel(pair);
    const Counts fourth(pair);
    move_bytes(pair.a, pair.b, 2000);
    const Counts fifth(pair);
    expect(fourth, fifth, 2000, 0);
    EXPECT_EQ(fifth.sent.calls, fourth.sent.calls + 1);
    EXPECT_EQ(fifth.received.calls, fourth.received.calls + 1);
}

// Without another call: whichever thread made the switch shows it.
void expect_shown_as_it_is(int fd) {
    const auto shown = [fd] { return std::popcount(socket_of(page_of(getpid()), fd).counters.path); };
    for (int left = fabtests::patience(2000); left > 0; --left) {
        const int before = directions_by_path(fd);
        if (shown() == before && directions_by_path(fd) == before) {
            return;
        }
        usleep(1000);
    }
    EXPECT_EQ(shown(), directions_by_path(fd));
}

// By splice(2), which takes the connection back to the kernel first.
void test_spliced_bytes_are_counted() {
    const Pair pair;
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const ProcessView before = page_of(getpid());
    for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(write(ends[1], "abcde", 5), 5);
        EXPECT_EQ(splice(ends[0], nullptr, pair.a, nullptr, 5, 0), 5);
        EXPECT_EQ(splice(pair.b, nullptr, ends[1], nullptr, 5, 0), 5);
        char bytes[5];
        EXPECT_EQ(read(ends[0], bytes, sizeof(bytes)), 5);
    }
    const ProcessView after = page_of(getpid());
    EXPECT_EQ(socket_of(after, pair.a).counters.out.bytes - socket_of(before, pair.a).counters.out.bytes, 15U);
    EXPECT_EQ(socket_of(after, pair.b).counters.in.bytes - socket_of(before, pair.b).counters.in.bytes, 15U);
    EXPECT_EQ(socket_of(after, pair.b).counters.in.calls - socket_of(before, pair.b).counters.in.calls, 3U);
    close(ends[0]);
    close(ends[1]);
}

void test_a_switch_is_shown_at_once() {
    const Connected pair;
    const auto exchange_until = [&](int directions) {
        constexpr int most = 5000;
        for (int i = 0;
             i < most && (directions_by_path(pair.a) != directions || directions_by_path(pair.b) != directions); ++i) {
            for (const auto& [from, to] : {std::pair{pair.a, pair.b}, std::pair{pair.b, pair.a}}) {
                move_bytes(from, to, 1);
                expect_shown_as_it_is(pair.a);
                expect_shown_as_it_is(pair.b);
            }
            usleep(1000);
        }
        EXPECT_EQ(directions_by_path(pair.a), directions);
        EXPECT_EQ(directions_by_path(pair.b), directions);
    };
    exchange_until(2);
    char byte = 0;
    EXPECT_EQ(recv(pair.a, &byte, 1, MSG_ERRQUEUE | MSG_DONTWAIT), -1);
    EXPECT_EQ(socket_of(page_of(getpid()), pair.a).counters.reason, static_cast<uint32_t>(Reason::option));
    exchange_until(0);
}

void test_a_new_connection_counts_from_zero() {
    { // whose memory the next one uses
        const Pair pair;
        move_bytes(pair.a, pair.b, 5000);
    }
    const Connected pair;
    move_bytes(pair.a, pair.b, 7);
    const ProcessView process = page_of(getpid());
    for (const int fd : {pair.a, pair.b}) {
        const rsstat::Socket& s = socket_of(process, fd).counters;
        EXPECT_EQ(s.out.bytes, fd == pair.a ? 7U : 0U);
        EXPECT_EQ(s.in.bytes, fd == pair.b ? 7U : 0U);
        EXPECT_EQ(s.in.calls + s.out.calls, 1U);
        EXPECT_EQ(s.in.path_bytes + s.out.path_bytes, 0U);
    }
}

void test_what_is_peeked_at_is_not_counted() {
    const Pair pair;
    EXPECT_EQ(send(pair.a, "x", 1, 0), 1);
    const uint64_t before = socket_of(page_of(getpid()), pair.b).counters.in.bytes;
    char byte = 0;
    EXPECT_EQ(recv(pair.b, &byte, 1, MSG_PEEK), 1);
    EXPECT_EQ(socket_of(page_of(getpid()), pair.b).counters.in.bytes, before);
    EXPECT_EQ(recv(pair.b, &byte, 1, 0), 1);
    EXPECT_EQ(socket_of(page_of(getpid()), pair.b).counters.in.bytes, before + 1);
}

void test_a_return_to_the_kernel_has_its_reason() {
    const Pair pair;
    char byte = 0;
    EXPECT_EQ(recv(pair.a, &byte, 1, MSG_ERRQUEUE | MSG_DONTWAIT), -1); // which only the kernel has
    constexpr int most = 1000;
    for (int i = 0; i < most && socket_of(page_of(getpid()), pair.a).counters.path != 0; ++i) {
        pair.exchange();
        usleep(1000);
    }
    const SocketView view = socket_of(page_of(getpid()), pair.a);
    EXPECT_EQ(view.counters.path, 0U);
    EXPECT_EQ(view.counters.returns, 1U);
    EXPECT_EQ(view.counters.reason, static_cast<uint32_t>(Reason::option));
    // By the kernel from now on, and counted all the same.
    const uint64_t before = view.counters.out.bytes;
    pair.exchange();
    EXPECT_EQ(socket_of(page_of(getpid()), pair.a).counters.out.bytes, before + 1);
}

uint16_t port_of(int fd) {
    sockaddr_in address{};
    socklen_t length = sizeof(address);
    EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
    return ntohs(address.sin_port);
}

// One end sends all the time, and the other one never: which of them switches first is decided by their addresses.
void test_a_stream_of_one_direction_does_not_go_back_and_forth() {
    for (const bool from_lower : {true, false}) {
        const Connected pair;
        const bool from_a = (port_of(pair.a) < port_of(pair.b)) == from_lower;
        const int from = from_a ? pair.a : pair.b;
        const int to = from_a ? pair.b : pair.a;
        constexpr size_t piece = 65536;
        constexpr size_t pieces = 4000;
        fabtests::Threads threads;
        threads.start([&] {
            const std::string data(piece, 'x');
            for (size_t i = 0; i < pieces; ++i) {
                EXPECT_EQ(send(from, data.data(), data.size(), 0), static_cast<ssize_t>(piece));
            }
        });
        threads.start([&] {
            std::string data(piece, 'y');
            for (size_t i = 0; i < pieces; ++i) {
                EXPECT_EQ(recv(to, data.data(), data.size(), MSG_WAITALL), static_cast<ssize_t>(piece));
            }
        });
        threads.join();
        const SocketView view = socket_of(page_of(getpid()), from);
        EXPECT_EQ(view.counters.returns, 0U);
        EXPECT(view.counters.out.path_bytes > 0);
    }
}

// It is the kernel's in any case, also one that a program shuts down to end its accept(2) and listens on anew.
void test_a_listener_has_no_reason() {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_EQ(listen(fd, 5), 0);
    EXPECT_EQ(shutdown(fd, SHUT_RDWR), 0);
    const int size = 10;
    EXPECT_EQ(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &size, sizeof(size)), 0);
    EXPECT_EQ(listen(fd, 5), 0);
    EXPECT_EQ(socket_of(page_of(getpid()), fd).counters.reason, static_cast<uint32_t>(Reason::none));
    close(fd);
}

void test_closed_connections_are_added_up() {
    const rsstat::Ended before = page_of(getpid()).page.ended;
    {
        const Pair pair;
        move_bytes(pair.a, pair.b, 5000);
    }
    const rsstat::Ended after = page_of(getpid()).page.ended;
    EXPECT_EQ(after.sockets, before.sockets + 2);
    EXPECT_EQ(after.upgraded, before.upgraded + 2);
    const auto none = static_cast<size_t>(Reason::none);
    EXPECT_EQ(after.reasons[none], before.reasons[none] + 2);
    EXPECT(after.bytes[0] >= before.bytes[0] + 5000);
    EXPECT(after.path_bytes[1] >= before.path_bytes[1] + 5000);
}

const CMUnitTest tests[] = {
    FABTEST(test_a_process_without_tcp_sockets_has_no_page),
    FABTEST(test_the_page_has_no_descriptor),
    FABTEST(test_an_upgraded_connection_is_shown),
    FABTEST(test_bytes_and_calls_are_exact),
    FABTEST(test_bytes_are_counted_on_the_path_that_they_take),
    FABTEST(test_spliced_bytes_are_counted),
    FABTEST(test_a_switch_is_shown_at_once),
    FABTEST(test_a_new_connection_counts_from_zero),
    FABTEST(test_what_is_peeked_at_is_not_counted),
    FABTEST(test_a_return_to_the_kernel_has_its_reason),
    FABTEST(test_a_stream_of_one_direction_does_not_go_back_and_forth),
    FABTEST(test_a_listener_has_no_reason),
    FABTEST(test_closed_connections_are_added_up),
};

} // namespace

int main() {
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
