// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The page of counters of processes under the preload library, as rsstat reads it: what is in it, and that it goes with
// its process.
#include <algorithm>
#include <bit>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fabtests/common/test.hpp"
#include "preload/connection/state.hpp"
#include "preload/test/pair.hpp"
#include "util/rsstat/segments.hpp"
#include "util/rsstat/snapshot.hpp"

namespace {

using preload::Reason;
using preload_test::Connected;
using preload_test::Pair;
using rsstat::ProcessView;
using rsstat::SocketView;

constexpr uint32_t both_ways = base::stats::receives_by_path | base::stats::sends_by_path;

// Of this process, or a child. A page is made by the process itself.
ProcessView page_of(pid_t pid) {
    auto snapshot = rsstat::take_snapshot({pid});
    if (snapshot.processes.size() != 1) {
        throw fabtests::Failure(std::to_string(snapshot.processes.size()) + " pages of the process");
    }
    return std::move(snapshot.processes.front());
}

bool has_page(pid_t pid) { return !rsstat::take_snapshot({pid}).processes.empty(); }

// Also those that nobody can be shown to have.
size_t segments_of(pid_t pid) {
    std::ifstream list("/proc/sysvipc/shm");
    size_t count = 0;
    for (std::string line; std::getline(list, line);) {
        const auto segment = rsstat::parse_segment(line);
        count += segment && segment->creator == pid ? 1 : 0;
    }
    return count;
}

const SocketView& socket_of(const ProcessView& process, int fd) {
    for (const SocketView& view : process.sockets) {
        if (view.counters.fd == fd) {
            return view;
        }
    }
    throw fabtests::Failure("socket " + std::to_string(fd) + " is not in the page");
}

size_t open_descriptors() {
    size_t count = 0;
    for ([[maybe_unused]] const auto& one : std::filesystem::directory_iterator("/proc/self/fd")) {
        ++count;
    }
    return count;
}

void move_bytes(int from, int to, size_t size) {
    std::string data(size, 'x');
    EXPECT_EQ(send(from, data.data(), size, 0), size);
    EXPECT_EQ(recv(to, data.data(), size, MSG_WAITALL), size);
}

// A child that runs body, tells that it has, and waits to be killed.
class Child {
  public:
    explicit Child(const std::function<void()>& body) {
        int ready[2];
        EXPECT(pipe(ready) == 0);
        pid_ = fork();
        if (pid_ == 0) {
            char good = 'y';
            try {
                body();
            } catch (const std::exception& e) {
                fprintf(stderr, "# in the child: %s\n", e.what());
                good = 'n';
            }
            (void)!write(ready[1], &good, 1);
            for (;;) {
                pause();
            }
        }
        close(ready[1]);
        char good = 0;
        const bool is_ready = read(ready[0], &good, 1) == 1 && good == 'y';
        close(ready[0]);
        if (!is_ready) {
            end();
            throw fabtests::Failure("the child failed");
        }
    }
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;
    ~Child() { end(); }
    void end() {
        if (pid_ > 0) {
            kill(pid_, SIGKILL);
            waitpid(pid_, nullptr, 0);
            pid_ = -1;
        }
    }
    [[nodiscard]] pid_t pid() const { return pid_; }

  private:
    pid_t pid_ = -1;
};

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

void test_a_child_has_a_page_of_its_own() {
    const Pair pair;
    const uint64_t before = socket_of(page_of(getpid()), pair.a).counters.out.bytes;
    Child child([] {
        EXPECT(!has_page(getpid())); // nothing was moved
        static const Pair own;       // until it is killed
        move_bytes(own.a, own.b, 777);
        EXPECT(has_page(getpid()));
    });
    const ProcessView process = page_of(child.pid());
    EXPECT_EQ(process.sockets.size(), 2U);
    EXPECT(process.sockets[0].counters.out.bytes >= 777);
    EXPECT_EQ(socket_of(page_of(getpid()), pair.a).counters.out.bytes, before);
    EXPECT_EQ(segments_of(getpid()), 1U);
    child.end();
    pair.exchange();
    EXPECT_EQ(socket_of(page_of(getpid()), pair.a).counters.out.bytes, before + 1);
}

void test_a_child_counts_what_it_moves_on_an_inherited_connection() {
    const Pair pair;
    const uint64_t before = socket_of(page_of(getpid()), pair.a).counters.out.bytes;
    Child child([&] { move_bytes(pair.a, pair.b, 321); });
    EXPECT_EQ(socket_of(page_of(child.pid()), pair.a).counters.out.bytes, 321U);
    EXPECT_EQ(socket_of(page_of(getpid()), pair.a).counters.out.bytes, before);
}

void test_an_inherited_connection_is_described_once() {
    const Pair pair;
    constexpr int calls = 100;
    constexpr size_t size = 10;
    Child child([&] {
        fabtests::Threads threads;
        for (int i = 0; i < 2; ++i) {
            threads.start([&] {
                const std::string data(size, 'x');
                for (int j = 0; j < calls; ++j) {
                    EXPECT_EQ(send(pair.a, data.data(), data.size(), 0), size);
                }
            });
        }
        threads.join();
    });
    const ProcessView process = page_of(child.pid());
    EXPECT_EQ(process.sockets.size(), 1U);
    EXPECT_EQ(process.page.without_row, 0U);
    EXPECT_EQ(socket_of(process, pair.a).counters.out.calls, 2U * calls);
    EXPECT_EQ(socket_of(process, pair.a).counters.out.bytes, 2 * calls * size);
    EXPECT_EQ(socket_of(process, pair.a).counters.path, both_ways);
}

// Beyond the capacity of the page.
void test_a_connection_without_a_row_is_counted_once() {
    constexpr rlim_t needed = base::stats::max_rows + 500;
    rlimit limit{};
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_max < needed) {
        throw fabtests::Skip("a process may not have as many descriptors as the page has rows");
    }
    const Child child([&] {
        const rlimit raised{needed, limit.rlim_max};
        EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &raised), 0);
        for (uint32_t i = 0; i < base::stats::max_rows; ++i) {
            const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
            sockaddr_in address{};
            address.sin_family = AF_INET;
            address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 256 + i % 200); // which have ports of their own
            EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
            EXPECT_EQ(listen(fd, 1), 0);
        }
        const uint64_t before = page_of(getpid()).page.without_row;
        const Pair pair;
        const uint64_t after = page_of(getpid()).page.without_row;
        EXPECT_EQ(after, before + 3); // with the listener
        move_bytes(pair.a, pair.b, 1000);
        pair.exchange();
        EXPECT_EQ(page_of(getpid()).page.without_row, after);
    });
}

// A server that accepts, forks and closes: the child tells of the connection.
void test_a_connection_that_is_left_to_a_child_is_not_counted() {
    const uint64_t before = page_of(getpid()).page.ended.sockets;
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(listen(listener, 1), 0);
    sockaddr_in address{};
    socklen_t length = sizeof(address);
    EXPECT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length), 0);
    const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(client, reinterpret_cast<sockaddr*>(&address), length), 0);
    const int accepted = accept(listener, nullptr, nullptr);
    EXPECT_EQ(send(client, "x", 1, 0), 1);
    Child child([] {});
    close(accepted);
    close(listener);
    EXPECT_EQ(page_of(getpid()).page.ended.sockets, before);
    child.end();
    close(client);
    EXPECT_EQ(page_of(getpid()).page.ended.sockets, before + 1);
}

void test_a_killed_process_leaves_nothing() {
    pid_t pid = -1;
    {
        Child child([] { const Pair own; });
        pid = child.pid();
        EXPECT_EQ(segments_of(pid), 1U);
    }
    EXPECT_EQ(segments_of(pid), 0U);
    EXPECT(!has_page(pid));
}

void test_a_page_goes_with_exec() {
    int ready[2];
    EXPECT(pipe(ready) == 0);
    const pid_t pid = fork();
    if (pid == 0) {
        const Pair own;
        dup2(ready[1], STDOUT_FILENO);
        execlp("sh", "sh", "-c", "echo; exec sleep 60", nullptr);
        _exit(1);
    }
    close(ready[1]);
    char byte = 0;
    const ssize_t n = read(ready[0], &byte, 1);
    close(ready[0]);
    const size_t left = segments_of(pid);
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    EXPECT_EQ(n, 1);
    EXPECT_EQ(left, 0U);
}

// Sent over a unix socket to a child: it shows the connection once it has moved bytes on it.
void test_a_passed_connection_is_shown_where_it_is_used() {
    int unix_pair[2];
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, unix_pair) == 0);
    Child child([&] {
        char byte = 0;
        iovec part{&byte, 1};
        alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
        msghdr message{};
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = control;
        message.msg_controllen = sizeof(control);
        const Pair pair;
        message.msg_controllen = CMSG_SPACE(sizeof(int));
        cmsghdr* header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &pair.a, sizeof(int));
        EXPECT_EQ(sendmsg(unix_pair[0], &message, 0), 1);
        message.msg_controllen = sizeof(control);
        EXPECT_EQ(recvmsg(unix_pair[1], &message, 0), 1);
        int passed = -1;
        memcpy(&passed, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
        move_bytes(passed, pair.b, 55);
        const ProcessView process = page_of(getpid());
        EXPECT_EQ(socket_of(process, passed).counters.out.bytes, 55U);
        EXPECT(socket_of(process, passed).counters.role == base::stats::Role::inherited);
        close(passed);
    });
    close(unix_pair[0]);
    close(unix_pair[1]);
}

void test_a_page_is_read_while_threads_write_it() {
    const Child child([] {
        const Pair first; // so that there is a page
        for (int i = 0; i < 2; ++i) {
            std::thread([] { // until it is killed
                for (;;) {
                    const Pair pair;
                    for (int j = 0; j < 200; ++j) {
                        pair.exchange();
                    }
                }
            })
                .detach();
        }
    });
    uint64_t last = 0;
    constexpr int rounds = 300;
    constexpr int longest_ms = 3000; // in a minute, as a sanitizer takes for all, the child has used up its ports
    const auto start = fabtests::Clock::now();
    for (int i = 0; i < rounds && (last == 0 || fabtests::milliseconds_since(start) < longest_ms); ++i) {
        const ProcessView process = page_of(child.pid());
        EXPECT(process.page.ended.sockets >= last);
        EXPECT(process.sockets.size() <= 16);
        last = process.page.ended.sockets;
        usleep(1000);
    }
    EXPECT(last != 0);
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
    FABTEST(test_a_child_has_a_page_of_its_own),
    FABTEST(test_a_child_counts_what_it_moves_on_an_inherited_connection),
    FABTEST(test_an_inherited_connection_is_described_once),
    FABTEST(test_a_connection_without_a_row_is_counted_once),
    FABTEST(test_a_connection_that_is_left_to_a_child_is_not_counted),
    FABTEST(test_a_killed_process_leaves_nothing),
    FABTEST(test_a_page_goes_with_exec),
    FABTEST(test_a_passed_connection_is_shown_where_it_is_used),
    FABTEST(test_a_page_is_read_while_threads_write_it),
};

} // namespace

int main() {
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
