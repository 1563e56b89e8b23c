// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What the library promises beyond the behaviour of single calls: delivery while the program is elsewhere and when it
// ends, children, defaults, an idle process, many connections. Processes are this program started anew in a role.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <rdma/rsocket.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fabtests/common/child.hpp"
#include "fabtests/common/streams.hpp"
#include "fabtests/common/test.hpp"
#include "rsockets/test/fork.hpp"
#include "rsockets/test/sockets.hpp"

namespace {

using namespace fabtests;
using namespace rsocket_test;

// ---- delivery

// Sends more than the peer has space for without waiting, and never calls again.
void role_sends_and_computes(const std::vector<std::string>& arguments) {
    const Number fd = connected_to(static_cast<uint16_t>(std::stoi(arguments.at(0))));
    Pattern pattern(1);
    std::vector<char> data(600000);
    pattern.fill(data.data(), data.size());
    EXPECT_EQ(rfcntl(fd, F_SETFL, O_NONBLOCK), 0);
    size_t sent = 0;
    for (ssize_t n = 0; sent < data.size() && (n = rsend(fd, data.data() + sent, data.size() - sent, 0)) > 0;) {
        sent += static_cast<size_t>(n);
    }
    say(std::to_string(sent));
    (void)listen_to_parent(); // no call of the library's
}

// The library's thread leaves a conversation alone; what is sent at the end of one is its business again.
void role_talks_sends_and_computes(const std::vector<std::string>& arguments) {
    const Number fd = connected_to(static_cast<uint16_t>(std::stoi(arguments.at(0))));
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
    for (char byte = 'q'; byte != '.';) {
        byte = std::chrono::steady_clock::now() < end ? 'q' : '.';
        EXPECT_EQ(rsend(fd, &byte, 1, 0), 1);
        EXPECT_EQ(rrecv(fd, &byte, 1, 0), 1);
    }
    Pattern pattern(1);
    std::vector<char> data(400000); // more than the peer has space for, and less than both have
    pattern.fill(data.data(), data.size());
    EXPECT_EQ(rsend(fd, data.data(), data.size(), 0), data.size());
    say("sent");
    (void)listen_to_parent(); // no call of the library's
}

void role_sends_and_exits(const std::vector<std::string>& arguments) {
    const int fd = rsocket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in to = loopback(static_cast<uint16_t>(std::stoi(arguments.at(0))));
    EXPECT_EQ(rconnect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    Pattern pattern(1);
    std::vector<char> data(400000);
    pattern.fill(data.data(), data.size());
    EXPECT_EQ(rsend(fd, data.data(), data.size(), 0), data.size());
}

void role_sends_closes_and_exits(const std::vector<std::string>& arguments) {
    const Number fd = connected_to(static_cast<uint16_t>(std::stoi(arguments.at(0))));
    Pattern pattern(1);
    std::vector<char> data(400000);
    pattern.fill(data.data(), data.size());
    EXPECT_EQ(rsend(fd, data.data(), data.size(), 0), data.size());
}

// More than the peer has space for, so that some of it is still here at exit.
void role_sends_shuts_down_and_exits(const std::vector<std::string>& arguments) {
    const int fd = rsocket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in to = loopback(static_cast<uint16_t>(std::stoi(arguments.at(0))));
    EXPECT_EQ(rconnect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    Pattern pattern(1);
    std::vector<char> data(400000);
    pattern.fill(data.data(), data.size());
    EXPECT_EQ(rsend(fd, data.data(), data.size(), 0), data.size());
    EXPECT_EQ(rshutdown(fd, SHUT_WR), 0);
    say("sent");
}

void role_is_killed(const std::vector<std::string>& arguments) {
    const Number fd = connected_to(static_cast<uint16_t>(std::stoi(arguments.at(0))));
    send_all(fd, "alive");
    (void)listen_to_parent();
}

void expect_pattern(int fd, size_t total) {
    Pattern pattern(1);
    std::vector<char> buffer(4096);
    for (size_t at = 0; at < total;) {
        const ssize_t n = rrecv(fd, buffer.data(), std::min(buffer.size(), total - at), 0);
        EXPECT(n > 0);
        pattern.check(buffer.data(), static_cast<size_t>(n));
        at += static_cast<size_t>(n);
    }
}

void test_what_was_sent_arrives_although_the_sender_never_calls_again() {
    const Number from = listener();
    Child child("sends_and_computes", {std::to_string(port_of(from))});
    const Number fd(raccept(from, nullptr, nullptr));
    const size_t total = std::stoul(child.hear());
    expect_pattern(fd, total);
    child.tell("done");
    child.finish();
}

void test_the_last_bytes_arrive_though_the_sender_never_calls_again() {
    const Number from = listener();
    Child child("talks_sends_and_computes", {std::to_string(port_of(from))});
    const Number fd(raccept(from, nullptr, nullptr));
    for (char byte = 0; byte != '.';) {
        EXPECT_EQ(rrecv(fd, &byte, 1, 0), 1);
        EXPECT_EQ(rsend(fd, &byte, 1, 0), 1);
    }
    EXPECT_EQ(child.hear(), "sent"); // all of it is taken; we have looked at none
    expect_pattern(fd, 400000);
    child.tell("done");
    child.finish();
}

void test_what_was_sent_arrives_although_the_sender_has_exited() {
    for (const char* role : {"sends_and_exits", "sends_closes_and_exits"}) {
        const Number from = listener();
        Child child(role, {std::to_string(port_of(from))});
        const Number fd(raccept(from, nullptr, nullptr));
        expect_pattern(fd, 400000);
        char byte = 0;
        EXPECT_EQ(rrecv(fd, &byte, 1, 0), 0);
        child.finish();
    }
}

void test_what_was_sent_arrives_behind_shutdown_and_exit() {
    const Number from = listener();
    Child child("sends_shuts_down_and_exits", {std::to_string(port_of(from))});
    const Number fd(raccept(from, nullptr, nullptr));
    EXPECT_EQ(child.hear(), "sent");
    expect_pattern(fd, 400000);
    char byte = 0;
    EXPECT_EQ(rrecv(fd, &byte, 1, 0), 0);
    child.finish();
}

void test_a_killed_peer_ends_a_blocked_receive() {
    const Number from = listener();
    Child child("is_killed", {std::to_string(port_of(from))});
    const Number fd(raccept(from, nullptr, nullptr));
    EXPECT_EQ(received(fd, 5), "alive");
    child.kill();
    char byte = 0;
    const ssize_t n = rrecv(fd, &byte, 1, 0);
    EXPECT(n == 0 || (n == -1 && errno == ECONNRESET));
}

// Some handlers call exit, which they must not; a library that libfabric is linked to on Debian is among them.
void role_exits_in_a_handler(const std::vector<std::string>&) {
    Ends ends = connected();
    struct sigaction action {};
    action.sa_handler = [](int) { exit(0); };
    sigaction(SIGTERM, &action, nullptr);
    say("ready");
    char byte = 0;
    for (;;) {
        (void)rrecv(ends.client, &byte, 1, MSG_DONTWAIT);
    }
}

void test_exit_within_a_call_does_not_hang() {
#ifdef __SANITIZE_THREAD__
    throw Skip("ThreadSanitizer complains of exit within a handler, and is right");
#endif
    for (int i = 0; i < 20; ++i) {
        Child child("exits_in_a_handler");
        EXPECT_EQ(child.hear(), "ready");
        child.interrupt(SIGTERM);
        child.finish();
    }
}

// ---- children

void test_a_child_may_close_what_it_inherits_and_make_its_own() {
#ifdef __SANITIZE_THREAD__
    throw Skip("ThreadSanitizer lets no child of a process with threads start one");
#endif
    const Number from = listener();
    Ends ends = connected();
    const pid_t pid = fork_with_threads();
    EXPECT(pid >= 0);
    if (pid == 0) {
        char byte = 0;
        bool well = rrecv(ends.client, &byte, 1, 0) == -1 && errno == ECONNRESET;
        well = rclose(ends.client) == 0 && rclose(ends.server) == 0 && rclose(from) == 0 && well;
        try {
            Ends own = connected();
            send_all(own.client, "own");
            well = received(own.server, 3) == "own" && well;
        } catch (const std::exception&) {
            well = false;
        }
        _exit(well ? 0 : 1);
    }
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
    send_all(ends.client, "parent");
    EXPECT_EQ(received(ends.server, 6), "parent");
    const Number another = connected_to(port_of(from));
    const Number accepted(raccept(from, nullptr, nullptr));
    send_all(another, "more");
    EXPECT_EQ(received(accepted, 4), "more");
}

// ---- defaults

int option(int fd, int level, int name) {
    int value = -1;
    socklen_t length = sizeof(value);
    EXPECT_EQ(rgetsockopt(fd, level, name, &value, &length), 0);
    return value;
}

void role_tells_defaults(const std::vector<std::string>&) {
    const Number fd(rsocket(AF_INET, SOCK_STREAM, 0));
    for (const int name : {SO_SNDBUF, SO_RCVBUF}) {
        say(std::to_string(option(fd, SOL_SOCKET, name)));
    }
    for (const int name : {RDMA_SQSIZE, RDMA_RQSIZE, RDMA_INLINE}) {
        say(std::to_string(option(fd, SOL_RDMA, name)));
    }
}

std::string defaults_with(const std::vector<std::string>& environment) {
    Child child("tells_defaults", {}, environment);
    std::string all;
    for (int i = 0; i < 5; ++i) {
        all += child.hear() + " ";
    }
    child.finish();
    return all;
}

void test_before_connecting_a_buffer_has_the_size_up_to_which_it_grows() {
    const std::string grown = "524288 524288 ";
    EXPECT_EQ(defaults_with({"RS_CONFIG_DIR=/nonexistent"}).substr(0, grown.size()), grown);
}

void test_defaults_come_from_files_and_the_environment() {
    std::string folder = std::filesystem::temp_directory_path() / "rsocket-defaults-XXXXXX";
    EXPECT(mkdtemp(folder.data()) != nullptr);
    const auto write = [&](const char* name, const char* text) { std::ofstream(folder + "/" + name) << text; };
    write("mem_default", "200000\n");
    write("wmem_default", "  300000  ");
    write("sqsize_default", "100\n");
    write("rqsize_default", "twelve\n");
    write("inline_default", "77 88\n");
    const std::string usual = defaults_with({"RS_CONFIG_DIR=/nonexistent"});
    const std::string files = defaults_with({"RS_CONFIG_DIR=" + folder});
    const std::string both = defaults_with({"RS_CONFIG_DIR=" + folder, "RS_MEM_DEFAULT=150000", "RS_WMEM_DEFAULT=x"});
    const std::string small = defaults_with({"RS_CONFIG_DIR=" + folder, "RS_MEM_DEFAULT=1", "RS_WMEM_DEFAULT=4097"});
    std::filesystem::remove_all(folder);
    const std::string rest = usual.substr(usual.find(' ', usual.find(' ', usual.find(' ') + 1) + 1) + 1);
    EXPECT_EQ(files, "300000 200000 100 " + rest);
    EXPECT_EQ(both, "300000 150000 100 " + rest);
    EXPECT_EQ(small, "4097 4096 100 " + rest);
}

// As built in.
void role_grows(const std::vector<std::string>&) {
    constexpr size_t size = 50000000;
    const Ends ends = connected();
    say(std::to_string(option(ends.server, SOL_SOCKET, SO_RCVBUF)));
    say(std::to_string(option(ends.client, SOL_SOCKET, SO_SNDBUF)));
    const int to = ends.client;
    std::thread sender([to] { send_all(to, std::string(size, 'g')); });
    const std::string got = received(ends.server, size);
    sender.join();
    EXPECT(got == std::string(size, 'g'));
    say(std::to_string(option(ends.server, SOL_SOCKET, SO_RCVBUF)));
    say(std::to_string(option(ends.client, SOL_SOCKET, SO_SNDBUF)));
}

void test_buffers_start_small_and_grow_by_default() {
    Child child("grows", {}, {"RS_CONFIG_DIR=/nonexistent"});
    long sizes[4];
    for (long& size : sizes) {
        size = std::stol(child.hear());
    }
    child.finish();
    for (const int side : {0, 1}) {
        EXPECT(sizes[side] > 0 && sizes[side] <= 65536);
        EXPECT(sizes[side + 2] > sizes[side]);
    }
}

// What neither end has read has room, as in the buffers of TCP, although they start small.
void role_sends_first(const std::vector<std::string>&) {
    constexpr size_t size = 400000;
    const Ends ends = connected();
    std::thread other([&] {
        send_all(ends.server, std::string(size, 's'));
        EXPECT(received(ends.server, size) == std::string(size, 'c'));
    });
    send_all(ends.client, std::string(size, 'c'));
    EXPECT(received(ends.client, size) == std::string(size, 's'));
    other.join();
}

// The same of programs that ask whether there is space, and send as much as the buffers hold at first, or a part of it.
void role_asks_and_sends_first(const std::vector<std::string>&) {
    constexpr size_t size = size_t{384} << 10;
    const Ends ends = connected();
    const std::vector<char> block(8192, 'b');
    for (size_t sent = 0; sent < size; sent += block.size()) {
        for (const int fd : {static_cast<int>(ends.client), static_cast<int>(ends.server)}) {
            pollfd space{fd, POLLOUT, 0};
            EXPECT_EQ(rpoll(&space, 1, patience(10000)), 1);
            send_all(fd, {block.begin(), block.end()});
        }
    }
    EXPECT_EQ(received(ends.client, size).size(), size);
    EXPECT_EQ(received(ends.server, size).size(), size);
}

void test_both_ends_may_send_before_they_receive() {
    for (const char* role : {"sends_first", "asks_and_sends_first"}) {
        run_in_child(role, {"RS_CONFIG_DIR=/nonexistent"});
    }
}

void role_connects_to_itself(const std::vector<std::string>&) {
    Ends ends = connected();
    send_all(ends.client, "self");
    EXPECT_EQ(received(ends.server, 4), "self");
}

void test_the_provider_is_found_whatever_fi_provider_says() {
    run_in_child("connects_to_itself", {"FI_PROVIDER"});
    run_in_child("connects_to_itself", {"FI_PROVIDER=tcp"});
    run_in_child("connects_to_itself", {"FI_PROVIDER=^rstream"});
}

// ---- rest

double cpu_seconds() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& t) {
        return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void test_an_idle_process_uses_no_cpu() {
    Ends ends = connected();
    const Number from = listener();
    send_all(ends.client, "x");
    EXPECT_EQ(received(ends.server, 1), "x");
    pollfd fds[] = {{ends.server, POLLIN, 0}, {ends.client, POLLIN, 0}, {from, POLLIN, 0}};
    EXPECT_EQ(rpoll(fds, 3, 100), 0); // whatever is left of the set-up
    const double before = cpu_seconds();
    EXPECT_EQ(rpoll(fds, 3, 1000), 0);
    EXPECT(cpu_seconds() - before < 0.02 * patience(1));
}

// Of what a poll was told of before: bytes that are left unread, below the low-water mark, and an end.
void test_a_wait_for_something_else_uses_no_cpu() {
    const Ends ends = connected();
    const int least = 10;
    EXPECT_EQ(rsetsockopt(ends.server, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof(least)), 0);
    pollfd fds[] = {{ends.server, POLLIN, 0}};
    EXPECT_EQ(rpoll(fds, 1, 0), 0);
    send_all(ends.client, "few");
    EXPECT_EQ(rpoll(fds, 1, 100), 0);
    double before = cpu_seconds();
    EXPECT_EQ(rpoll(fds, 1, 1000), 0);
    EXPECT(cpu_seconds() - before < 0.02 * patience(1));
    const int one = 1;
    EXPECT_EQ(rsetsockopt(ends.server, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof(one)), 0);
    EXPECT_EQ(received(ends.server, 3), "few");
    EXPECT_EQ(rpoll(fds, 1, 0), 0);
    EXPECT_EQ(rshutdown(ends.client, SHUT_WR), 0);
    EXPECT_EQ(rpoll(fds, 1, 10000), 1);
    char byte = 0;
    EXPECT_EQ(rrecv(ends.server, &byte, 1, 0), 0);
    fds[0].events = 0;
    before = cpu_seconds();
    EXPECT_EQ(rpoll(fds, 1, 1000), 0);
    EXPECT(cpu_seconds() - before < 0.02 * patience(1));
}

void exchange(const Ends& ends) {
    send_all(ends.client, "x");
    EXPECT_EQ(received(ends.server, 1), "x");
}

void test_descriptors_and_memory_are_given_back() {
    const auto round = [] {
        for (int i = 0; i < 50; ++i) {
            exchange(connected());
        }
    };
    round(); // what is kept for later is made
    size_t with_one = 0;
    {
        const Ends ends = connected();
        exchange(ends);
        with_one = open_fds();
    }
    const size_t memory = resident_bytes();
    for (int i = 0; i < 5; ++i) {
        round();
    }
    // What a peer has not acknowledged is kept for a moment behind the program.
    const auto start = Clock::now();
    while (open_fds() > with_one && milliseconds_since(start) < patience(5000)) {
        usleep(10000);
    }
    EXPECT(open_fds() <= with_one);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) // which keep what was freed
    EXPECT(resident_bytes() < memory + (size_t{16} << 20));
#else
    (void)memory;
#endif
}

// What a connected socket costs its process: idle, and once both of its buffers were full.
void test_the_cost_of_a_connected_socket_is_as_documented() {
    constexpr size_t count = 25;
    const Number from = listener();
    const uint16_t port = port_of(from);
    exchange(connected());
    const size_t fds = open_fds();
    const size_t memory = resident_bytes();
    std::vector<Ends> all;
    for (size_t i = 0; i < count; ++i) {
        Number client = connected_to(port);
        all.push_back({std::move(client), Number(raccept(from, nullptr, nullptr))});
        exchange(all.back());
    }
    const size_t ends = 2 * count;
    const size_t idle = (resident_bytes() - memory) / ends;
    const size_t each = (open_fds() - fds + ends - 1) / ends;
    std::vector<char> data(65536, 'x');
    for (const Ends& one : all) {
        for (const auto& [sender, receiver] : {std::pair<int, int>(one.client, one.server), {one.server, one.client}}) {
            size_t sent = 0;
            for (ssize_t n = 0; (n = rsend(sender, data.data(), data.size(), MSG_DONTWAIT)) > 0;) {
                sent += static_cast<size_t>(n);
            }
            EXPECT_EQ(received(receiver, sent).size(), sent);
        }
    }
    const size_t used = (resident_bytes() - memory) / ends;
    printf("# a connected socket: %zu descriptors, %zu KiB idle, %zu KiB once its buffers were full\n", each,
           idle >> 10, used >> 10);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    const bool libfabric2 = FI_VERSION_GE(fi_version(), FI_VERSION(2, 0)); // its core needs more itself
    EXPECT(each <= (libfabric2 ? 8U : 7U));
    EXPECT(idle < size_t{libfabric2 ? 1300U : 640U} << 10);
    EXPECT(used < size_t{libfabric2 ? 2500U : 1900U} << 10);
#endif
}

void test_a_thousand_connections_in_one_set() {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    constexpr size_t count = 1000;
    if (limit.rlim_max < 20000) {
        throw Skip("20000 descriptors are needed, the limit is " + std::to_string(limit.rlim_max));
    }
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    const Number from = listener();
    const uint16_t port = port_of(from);
    const Number set(repoll_create(0));
    std::vector<Number> clients;
    std::vector<Number> servers;
    for (size_t i = 0; i < count; ++i) {
        Number client(rsocket(AF_INET, SOCK_STREAM, 0));
        const int small = 4096;
        EXPECT_EQ(rsetsockopt(client, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
        const sockaddr_in to = loopback(port);
        EXPECT_EQ(rconnect(client, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
        clients.push_back(std::move(client));
        servers.emplace_back(raccept(from, nullptr, nullptr));
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.u64 = i;
        EXPECT_EQ(repoll_ctl(set, EPOLL_CTL_ADD, servers.back(), &event), 0);
    }
    for (int round = 0; round < 3; ++round) {
        for (size_t i = 0; i < count; ++i) {
            send_all(clients[i], "ping");
        }
        std::vector<bool> seen(count);
        for (size_t left = count; left != 0;) {
            epoll_event events[64];
            const int n = repoll_wait(set, events, 64, patience(20000));
            EXPECT(n > 0);
            for (int i = 0; i < n; ++i) {
                const size_t which = events[i].data.u64;
                EXPECT_EQ(received(servers[which], 4), "ping");
                EXPECT(!seen[which]);
                seen[which] = true;
                --left;
            }
        }
    }
}

} // namespace

int main(int argc, char** argv) {
    signal(SIGPIPE, SIG_IGN); // a peer that fails is told of by its own failure
    const Role roles[] = {
        {"sends_and_computes", role_sends_and_computes},
        {"talks_sends_and_computes", role_talks_sends_and_computes},
        {"sends_and_exits", role_sends_and_exits},
        {"sends_closes_and_exits", role_sends_closes_and_exits},
        {"is_killed", role_is_killed},
        {"sends_shuts_down_and_exits", role_sends_shuts_down_and_exits},
        {"exits_in_a_handler", role_exits_in_a_handler},
        {"tells_defaults", role_tells_defaults},
        {"grows", role_grows},
        {"sends_first", role_sends_first},
        {"asks_and_sends_first", role_asks_and_sends_first},
        {"connects_to_itself", role_connects_to_itself},
    };
    if (const auto status = play_role(argc, argv, roles)) {
        return *status;
    }
    const CMUnitTest tests[] = {
        FABTEST(test_what_was_sent_arrives_although_the_sender_never_calls_again),
        FABTEST(test_the_last_bytes_arrive_though_the_sender_never_calls_again),
        FABTEST(test_what_was_sent_arrives_although_the_sender_has_exited),
        FABTEST(test_what_was_sent_arrives_behind_shutdown_and_exit),
        FABTEST(test_a_killed_peer_ends_a_blocked_receive),
        FABTEST(test_exit_within_a_call_does_not_hang),
        FABTEST(test_a_child_may_close_what_it_inherits_and_make_its_own),
        FABTEST(test_before_connecting_a_buffer_has_the_size_up_to_which_it_grows),
        FABTEST(test_defaults_come_from_files_and_the_environment),
        FABTEST(test_buffers_start_small_and_grow_by_default),
        FABTEST(test_both_ends_may_send_before_they_receive),
        FABTEST(test_the_provider_is_found_whatever_fi_provider_says),
        FABTEST(test_an_idle_process_uses_no_cpu),
        FABTEST(test_a_wait_for_something_else_uses_no_cpu),
        FABTEST(test_descriptors_and_memory_are_given_back),
        FABTEST(test_the_cost_of_a_connected_socket_is_as_documented),
        FABTEST(test_a_thousand_connections_in_one_set),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
