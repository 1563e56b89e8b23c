// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Keepalive: its settings, and peers that are silent but there, whom it must leave alone. That it finds those who are
// gone needs a wire that can be cut: fabtests/lab/tests.
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include "fabtests/common/child.hpp"
#include "fabtests/common/streams.hpp"
#include "fabtests/common/test.hpp"

namespace {

using namespace fabtests;

constexpr int idle = FI_OPT_RSTREAM_KEEPALIVE_IDLE;
constexpr int interval = FI_OPT_RSTREAM_KEEPALIVE_INTERVAL;
constexpr int count = FI_OPT_RSTREAM_KEEPALIVE_COUNT;

template <class T> int set(Stream& s, int option, T value) {
    return fi_setopt(&s.ep->fid, FI_OPT_ENDPOINT, option, &value, sizeof(value));
}

template <class T> T get(Stream& s, int option) {
    T value{};
    size_t length = sizeof(value);
    check("fi_getopt", fi_getopt(&s.ep->fid, FI_OPT_ENDPOINT, option, &value, &length));
    EXPECT_EQ(length, sizeof(value));
    return value;
}

void ask_for(Stream& s, size_t idle_ms, size_t interval_ms, size_t times) {
    EXPECT_RESULT(set(s, interval, interval_ms), 0);
    EXPECT_RESULT(set(s, count, times), 0);
    EXPECT_RESULT(set(s, idle, idle_ms), 0);
}

void test_it_is_off_by_default_as_with_tcp() {
    Host host(here());
    Stream s(host);
    EXPECT_EQ(get<size_t>(s, idle), 0U);
    EXPECT_EQ(get<size_t>(s, interval), 75000U);
    EXPECT_EQ(get<size_t>(s, count), 9U);
}

void test_settings_are_taken_as_size_t_and_uint32_t() {
    Host host(here());
    Stream s(host);
    EXPECT_EQ(get<size_t>(s, FI_OPT_RSTREAM_USER_TIMEOUT), 925000U);
    for (const int option : {idle, interval, count, static_cast<int>(FI_OPT_RSTREAM_USER_TIMEOUT)}) {
        EXPECT_RESULT(set<size_t>(s, option, 100), 0);
        EXPECT_EQ(get<uint32_t>(s, option), 100U);
        EXPECT_RESULT(set<uint32_t>(s, option, 50), 0);
        EXPECT_EQ(get<size_t>(s, option), 50U);
        EXPECT_RESULT(set<uint16_t>(s, option, 25), -FI_EINVAL);
        EXPECT_EQ(get<size_t>(s, option), 50U);
    }
}

void test_threads_may_set_different_settings_at_once() {
    Host host(here());
    Stream s(host);
    std::atomic<int> lost{0};
    Threads threads;
    for (const int option : {idle, interval, static_cast<int>(FI_OPT_RSTREAM_USER_TIMEOUT)}) {
        threads.start([&s, &lost, option] {
            const auto start = Clock::now();
            for (size_t i = 0; milliseconds_since(start) < 500; ++i) {
                const size_t value = 1 + i % 1000000;
                lost += set<size_t>(s, option, value) != 0 || get<size_t>(s, option) != value ? 1 : 0;
            }
        });
    }
    threads.join();
    EXPECT_EQ(lost.load(), 0);
}

void test_what_is_out_of_range_is_refused_and_changes_nothing() {
    Host host(here());
    Stream s(host);
    EXPECT_RESULT(set<size_t>(s, idle, 0), 0);
    EXPECT_RESULT(set<size_t>(s, interval, 0), -FI_EINVAL);
    EXPECT_RESULT(set<size_t>(s, count, 0), -FI_EINVAL);
    EXPECT_RESULT(set<size_t>(s, FI_OPT_RSTREAM_USER_TIMEOUT, 0), 0);
    for (const int option : {idle, interval, static_cast<int>(FI_OPT_RSTREAM_USER_TIMEOUT)}) {
        EXPECT_RESULT(set<size_t>(s, option, 32767000), 0);
        EXPECT_RESULT(set<size_t>(s, option, 32767001), -FI_EINVAL);
        EXPECT_EQ(get<size_t>(s, option), 32767000U);
    }
    EXPECT_RESULT(set<size_t>(s, count, 127), 0);
    EXPECT_RESULT(set<size_t>(s, count, 128), -FI_EINVAL);
    EXPECT_EQ(get<size_t>(s, count), 127U);
}

void show_parameters(const std::vector<std::string>& /*arguments*/) {
    Host host(here());
    Stream s(host);
    say(std::to_string(get<size_t>(s, idle)) + " " + std::to_string(get<size_t>(s, interval)) + " " +
        std::to_string(get<size_t>(s, count)) + " " + std::to_string(get<size_t>(s, FI_OPT_RSTREAM_USER_TIMEOUT)));
}

void test_parameters_set_the_defaults() {
    Child child("show parameters", {},
                {"FI_RSTREAM_KEEPALIVE_IDLE=7000", "FI_RSTREAM_KEEPALIVE_INTERVAL=300", "FI_RSTREAM_KEEPALIVE_COUNT=4",
                 "FI_RSTREAM_USER_TIMEOUT=5000"});
    EXPECT_EQ(child.hear(), std::string("7000 300 4 5000"));
    child.finish();
}

void test_parameters_out_of_range_leave_the_defaults() {
    Child child("show parameters", {},
                {"FI_RSTREAM_KEEPALIVE_IDLE=32767001", "FI_RSTREAM_KEEPALIVE_INTERVAL=0",
                 "FI_RSTREAM_KEEPALIVE_COUNT=128", "FI_RSTREAM_USER_TIMEOUT=32767001"});
    EXPECT_EQ(child.hear(), std::string("0 75000 9 925000"));
    child.finish();
}

// ---- On a core of the kernel's TCP the kernel is given the task.

// This process's socket at one end of a connection.
int kernel_socket(Stream& s) {
    const std::vector<std::byte> wanted = s.name();
    for (int fd = 0; fd < 1024; ++fd) {
        sockaddr_storage name{};
        socklen_t length = sizeof(name);
        int listening = 0;
        socklen_t size = sizeof(listening);
        if (getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) == 0 && name.ss_family == AF_INET &&
            port_of(wanted) == ntohs(reinterpret_cast<sockaddr_in*>(&name)->sin_port) &&
            getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) == 0 && listening == 0) {
            return fd;
        }
    }
    failed(__FILE__, __LINE__, "there is no socket of this connection");
}

int kernel_option(int fd, int level, int name) {
    int value = -1;
    socklen_t size = sizeof(value);
    EXPECT_EQ(getsockopt(fd, level, name, &value, &size), 0);
    return value;
}

void test_on_tcp_the_kernel_keeps_the_connection_alive() {
    need_core("tcp");
    Pair pair("tcp", 0, node_name());
    const int fd = kernel_socket(*pair.client);
    EXPECT_EQ(kernel_option(fd, SOL_SOCKET, SO_KEEPALIVE), 0);
    ask_for(*pair.client, 4001, 2000, 3);
    EXPECT_EQ(kernel_option(fd, SOL_SOCKET, SO_KEEPALIVE), 1);
    EXPECT_EQ(kernel_option(fd, IPPROTO_TCP, TCP_KEEPIDLE), 5); // whole seconds, never less than asked for
    EXPECT_EQ(kernel_option(fd, IPPROTO_TCP, TCP_KEEPINTVL), 2);
    EXPECT_EQ(kernel_option(fd, IPPROTO_TCP, TCP_KEEPCNT), 3);
    EXPECT_EQ(kernel_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), 11000);
    EXPECT_RESULT(set<size_t>(*pair.client, idle, 0), 0);
    EXPECT_EQ(kernel_option(fd, SOL_SOCKET, SO_KEEPALIVE), 0);
    EXPECT_EQ(kernel_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), 0);
}

void test_on_tcp_the_kernel_has_the_user_timeout() {
    need_core("tcp");
    Pair pair("tcp", 0, node_name());
    const int fd = kernel_socket(*pair.client);
    EXPECT_EQ(kernel_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), 0); // the kernel's own way to the default
    EXPECT_RESULT(set<size_t>(*pair.client, FI_OPT_RSTREAM_USER_TIMEOUT, 2500), 0);
    EXPECT_EQ(kernel_option(fd, SOL_SOCKET, SO_KEEPALIVE), 0);
    EXPECT_EQ(kernel_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), 2500);
    ask_for(*pair.client, 4000, 2000, 3);
    EXPECT_EQ(kernel_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), 2500);
    EXPECT_RESULT(set<size_t>(*pair.client, FI_OPT_RSTREAM_USER_TIMEOUT, 0), 0);
    EXPECT_EQ(kernel_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), 10000); // keepalive's
}

// As with TCP, where keepalive does not change how long data is repeated.
void test_on_tcp_a_long_keepalive_leaves_unacknowledged_data_to_the_kernel() {
    need_core("tcp");
    Pair pair("tcp", 0, node_name());
    const int fd = kernel_socket(*pair.client);
    ask_for(*pair.client, 7200000, 75000, 9);
    EXPECT_EQ(kernel_option(fd, SOL_SOCKET, SO_KEEPALIVE), 1);
    EXPECT_EQ(kernel_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), 0);
    ask_for(*pair.client, 300000, 100000, 6);
    EXPECT_EQ(kernel_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), 900000);
    ask_for(*pair.client, 325000, 100000, 6);
    EXPECT_EQ(kernel_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), 0);
}

void test_on_tcp_what_was_set_before_connecting_is_in_force_after() {
    need_core("tcp");
    Host host(here());
    Listener listener(host);
    Stream client(host);
    ask_for(client, 9000, 1000, 2);
    client.connect(listener.name().data());
    Event request = listener.request();
    const Info info(request.info);
    Stream server(host, info.get());
    server.accept();
    for (int connected = 0; connected < 2; ++connected) {
        EXPECT_EQ(host.next_event().type, static_cast<uint32_t>(FI_CONNECTED));
    }
    EXPECT_EQ(kernel_option(kernel_socket(client), IPPROTO_TCP, TCP_KEEPIDLE), 9);
}

// ---- Peers that are there.

void silent(const std::vector<std::string>& arguments) {
    Host host(here());
    Stream stream(host);
    stream.connect(from_text(arguments.at(0)).data());
    host.expect(FI_CONNECTED, &stream.ep->fid, patience(20000));
    say("ready");
    (void)listen_to_parent(patience(60000)); // not a call of libfabric's meanwhile
    send_pattern(stream, 5000, 1000, 1);
    EXPECT_RESULT(fi_shutdown(stream.get(), FI_RSTREAM_SHUT_WR), 0);
    (void)listen_to_parent(patience(60000));
}

constexpr size_t idle_ms = 500;
constexpr size_t interval_ms = 250;

void expect_well(Stream& stream) {
    // In this time a peer that is gone would have been found twice over; the kernel's TCP counts in seconds.
    const int silence_ms = core_name() == "tcp" ? 2 * (1000 + 2 * 1000) : 2 * (500 + 2 * 250);
    const auto start = Clock::now();
    while (milliseconds_since(start) < silence_ms) {
        EXPECT_RESULT(peek_recv(stream), -FI_EAGAIN);
        (void)stream.wait(100);
    }
}

// No more questions: Linux's siw answers one wrongly that meets its own sending, and the connection is reset
// (fi_rstream(7), KEEPALIVE). What is under way is answered meanwhile.
void ask_no_more(Stream& stream) {
    EXPECT_RESULT(set<size_t>(stream, idle, 0), 0);
    const auto start = Clock::now();
    while (milliseconds_since(start) < static_cast<int>(interval_ms)) {
        EXPECT_RESULT(peek_recv(stream), -FI_EAGAIN);
        (void)stream.wait(100);
    }
}

void test_a_peer_that_calls_nothing_for_long_is_not_lost() {
    Host host(here());
    Listener listener(host);
    Child child("silent", {to_text(listener.name())});
    Event request = listener.request(patience(20000));
    const Info info(request.info);
    Stream stream(host, info.get());
    ask_for(stream, idle_ms, interval_ms, 2);
    stream.accept();
    host.expect(FI_CONNECTED, &stream.ep->fid, patience(20000));
    EXPECT_EQ(child.hear(), std::string("ready"));
    expect_well(stream);
    ask_no_more(stream);
    child.tell("go on");
    recv_pattern(stream, 5000, 1000, 1);
    char byte = 0;
    EXPECT_RESULT(stream.recv_some(&byte, 1), 0);
    child.tell("go");
    child.finish();
}

void test_a_peer_that_is_stopped_for_long_is_not_lost() {
    Host host(here());
    Listener listener(host);
    Child child("silent", {to_text(listener.name())});
    Event request = listener.request(patience(20000));
    const Info info(request.info);
    Stream stream(host, info.get());
    ask_for(stream, idle_ms, interval_ms, 2);
    stream.accept();
    host.expect(FI_CONNECTED, &stream.ep->fid, patience(20000));
    EXPECT_EQ(child.hear(), std::string("ready"));
    child.interrupt(SIGSTOP);
    Pattern pattern(2);
    (void)fill_up(stream, pattern); // and what is sent to it stays unread
    expect_well(stream);
    ask_no_more(stream);
    child.interrupt(SIGCONT);
    child.tell("go on");
    recv_pattern(stream, 5000, 1000, 1);
    child.tell("go");
    child.finish();
}

// The program's own absence is not held against the peer.
void test_a_program_that_comes_back_late_finds_its_peer() {
    Pair pair(core_name(), 0, node_name());
    ask_for(*pair.client, 50, 20, 1);
    for (int round = 0; round < 3; ++round) {
        EXPECT_RESULT(peek_recv(*pair.client), -FI_EAGAIN);
        poll(nullptr, 0, 200); // away for longer than it all takes
    }
    move_bytes(*pair.client, *pair.server, 100000);
    move_bytes(*pair.server, *pair.client, 100000);
}

// Idle descriptors may become readable to have the peer asked, but not all the time.
void test_an_idle_connection_sleeps_between_questions() {
    Pair pair(core_name(), 0, node_name());
    ask_for(*pair.client, 200, 100, 2);
    const auto start = Clock::now();
    int wakes = 0;
    while (milliseconds_since(start) < 2000) {
        EXPECT_RESULT(peek_recv(*pair.client), -FI_EAGAIN);
        wakes += pair.client->wait(2000 - milliseconds_since(start)) ? 1 : 0;
    }
    EXPECT(wakes <= 100);
}

} // namespace

int main(int argc, char** argv) {
    constexpr Role roles[] = {{"show parameters", show_parameters}, {"silent", silent}};
    if (const auto status = play_role(argc, argv, roles)) {
        return *status;
    }
    const CMUnitTest tests[] = {
        FABTEST(test_it_is_off_by_default_as_with_tcp),
        FABTEST(test_settings_are_taken_as_size_t_and_uint32_t),
        FABTEST(test_threads_may_set_different_settings_at_once),
        FABTEST(test_what_is_out_of_range_is_refused_and_changes_nothing),
        FABTEST(test_parameters_set_the_defaults),
        FABTEST(test_parameters_out_of_range_leave_the_defaults),
        FABTEST(test_on_tcp_the_kernel_keeps_the_connection_alive),
        FABTEST(test_on_tcp_the_kernel_has_the_user_timeout),
        FABTEST(test_on_tcp_a_long_keepalive_leaves_unacknowledged_data_to_the_kernel),
        FABTEST(test_on_tcp_what_was_set_before_connecting_is_in_force_after),
        FABTEST(test_a_peer_that_calls_nothing_for_long_is_not_lost),
        FABTEST(test_a_peer_that_is_stopped_for_long_is_not_lost),
        FABTEST(test_a_program_that_comes_back_late_finds_its_peer),
        FABTEST(test_an_idle_connection_sleeps_between_questions),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
