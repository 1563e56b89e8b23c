// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// ucmatose end to end: our server with our client, over the tcp core of libfabric on this host.
#include <csignal>

#include "fabtests/common/test.hpp"
#include "util/test/process.hpp"

namespace {

using namespace util_test;
using Words = std::vector<std::string>;

Words operator+(Words a, const Words& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

const Words on_tcp{"--provider", "tcp"};

struct Server : Process {
    explicit Server(const Words& more = {}, const std::string& address = "127.0.0.1")
        : Process("ucmatose", Words{"-b", address, "-p", "0"} + on_tcp + more), port(port_of(*this)) {}
    std::string port;
};

struct Client : Process {
    explicit Client(const std::string& port, const Words& more = {}, const std::string& address = "127.0.0.1")
        : Process("ucmatose", Words{"-s", address, "-p", port} + on_tcp + more) {}
};

void test_both(const Words& options, const std::string& summary) {
    Server server(options);
    Client client(server.port, options);
    expect_success(client);
    expect_success(server);
    for (const Process* one : {static_cast<Process*>(&client), static_cast<Process*>(&server)}) {
        if (!holds(one->output(), summary) || !holds(one->output(), "connections/s") ||
            !holds(one->output(), "return status 0\n")) {
            throw fabtests::Failure(one->text());
        }
    }
}

void test_messages_pass_and_are_counted() { test_both({}, "20 messages of 100 bytes, half each way"); }
void test_many_connections_at_once() { test_both({"-c", "200", "-C", "3"}, "1200 messages of 100 bytes"); }
void test_more_messages_than_a_queue_holds() { test_both({"-c", "3", "-C", "3000"}, "18000 messages of 100 bytes"); }
void test_messages_of_one_byte_and_of_a_million() {
    test_both({"-S", "1"}, "20 messages of 1 bytes");
    test_both({"-S", "1000000", "-c", "2"}, "40 messages of 1000000 bytes");
}
void test_connections_alone() { test_both({"-c", "10", "-C", "0"}, "10 connections in "); }
void test_all_may_move_to_another_event_queue() { test_both({"-c", "5", "-m"}, "migrating to new event channel\n"); }

void test_every_format_of_address() {
    const struct {
        const char* format;
        const char* address;
    } cases[] = {{"name", "localhost"}, {"name", "127.0.0.1"}, {"ip", "127.0.0.1"}, {"IP", "127.0.0.1"}};
    for (const auto& one : cases) {
        Server server({"-f", one.format}, one.address);
        Client client(server.port, {"-f", one.format, "-b", one.address}, one.address);
        expect_success(client);
        expect_success(server);
    }
}

void test_ipv6() {
    Process probe("ucmatose", Words{"-b", "::1", "-p", "0", "-f", "ipv6"} + on_tcp);
    try {
        (void)port_of(probe);
    } catch (const fabtests::Failure&) {
        throw fabtests::Skip("no IPv6 here");
    }
    probe.signal(SIGKILL);
    for (const char* address : {"::1", "::0"}) {
        Server server({"-f", "ipv6"}, address);
        Client client(server.port, {"-f", "ipv6"}, "::1");
        expect_success(client);
        expect_success(server);
    }
}

void test_ends_that_differ_are_told_so() {
    const Words cases[] = {{"-C", "6"}, {"-S", "101"}, {"-c", "2"}};
    for (const auto& one : cases) {
        Server server(one);
        Client client(server.port);
        expect_complaint(client, "they must be the same");
        expect_complaint(server, "they must be the same");
    }
}

void test_nobody_listens() {
    std::string port;
    {
        const Server server;
        port = server.port;
    }
    expect_complaint(run_program("ucmatose", Words{"-s", "127.0.0.1", "-c", "3", "-p", port} + on_tcp),
                     "127.0.0.1:" + port + ": connection refused");
}

void test_a_client_that_is_killed_ends_its_server() {
    Server server({"-C", "1000000000"});
    Client client(server.port, {"-C", "1000000000"});
    client.line_with("receiving data transfers");
    server.line_with("initiating data transfers");
    client.signal(SIGKILL);
    expect_complaint(server, "connection 1 (127.0.0.1:");
}

void test_a_server_that_is_killed_ends_its_client() {
    Server server({"-c", "3", "-C", "1000000000"});
    Client client(server.port, {"-c", "3", "-C", "1000000000"});
    client.line_with("receiving data transfers");
    server.signal(SIGKILL);
    expect_complaint(client, "messages sent, ");
}

void test_an_interruption_ends_both() {
    Server server({"-C", "1000000000"});
    Client client(server.port, {"-C", "1000000000"});
    client.line_with("receiving data transfers");
    client.signal(SIGINT);
    expect_complaint(client, "interrupted, with 1 of 1 connections made");
    expect_complaint(server, "connection 1 (127.0.0.1:");
}

void test_a_peer_that_is_silent_is_not_waited_for_without_end() {
    Server server({"-C", "1000000000"});
    Client client(server.port, {"-C", "1000000000", "--timeout", "1"});
    client.line_with("receiving data transfers");
    server.signal(SIGSTOP);
    expect_complaint(client, "nothing for 1 s, with 1 of 1 connections made; connection 1 (127.0.0.1:");
    Server alone({"--timeout", "1"});
    expect_complaint(alone, "nothing for 1 s, with 0 of 1 connections made; --timeout");
}

void test_json_is_one_line() {
    Process server("ucmatose", Words{"-b", "127.0.0.1", "-p", "0", "--json"} + on_tcp);
    const std::string port = port_of_json(server);
    Client client(port, {"--json"});
    expect_success(client);
    expect_success(server);
    EXPECT_EQ(count_lines(client.output()), 1U);
    EXPECT(has_json(client, {{"program", "ucmatose"}, {"role", "client"}, {"backend", "fabric"}}));
    EXPECT(has_json(client, {{"status", "complete"}, {"connections", 1}, {"messages", 20}, {"bytes", 2000}}));
    const auto summary = util::Json::parse(client.output());
    EXPECT(summary.at("device").get<std::string>().starts_with("tcp "));
    EXPECT(summary.at("connect_seconds") > 0 && summary.at("connections_per_second") > 0);
}

void test_what_only_rdmacm_can_do_is_refused_by_name() {
    const struct {
        Words words;
        const char* complaint;
    } cases[] = {
        {{"-P", "ib"}, "-P ib: the fabric backend has only the tcp port space; --backend rdmacm can"},
        {{"-t", "8"}, "-t: the fabric backend cannot set the type of service; --backend rdmacm can"},
        {{"-a", "14"}, "-a: the fabric backend cannot set the ACK timeout; --backend rdmacm can"},
    };
    for (const auto& one : cases) {
        expect_complaint(run_program("ucmatose", Words{"-s", "127.0.0.1"} + on_tcp + one.words), one.complaint);
    }
    expect_complaint(run_program("ucmatose", Words{"-s", "fe80::1", "-f", "gid"} + on_tcp),
                     "-f gid: the fabric backend takes IP addresses only; --backend rdmacm can");
}

void test_bad_options_are_named() {
    const struct {
        Words words;
        const char* complaint;
    } cases[] = {
        {{"-S", "0"}, "-S 0: not a number from 1 to "},
        {{"-S", "64000001K"}, "-S 64000001K: not a number from 1 to "},
        {{"-C", "ten"}, "-C ten: not a number"},
        {{"-C", ""}, "-C '': not a number"},
        {{"-c", "0"}, "-c 0: not a number from 1 to "},
        {{"-c", "70000"}, "-c 70000: not a number"},
        {{"-c", "60000", "-S", "64M"}, "-c 60000 -S 67108864: that needs "},
        {{"-p", "port"}, "-p port: not a number"},
        {{"-f", "dotted"}, "-f dotted: not one of name, ip, ipv6 and gid"},
        {{"-f", "ip", "-s", "::1"}, "-s ::1: not an IPv4 address"},
        {{"-f", "ipv6", "-s", "127.0.0.1"}, "-s 127.0.0.1: not an IPv6 address"},
        {{"-f", "gid", "-s", "127.0.0.1"}, "-s 127.0.0.1: not a GID"},
        {{"-f", "gid"}, "-f gid: a server needs the GID"},
        {{"-P", "udp"}, "-P udp: neither tcp nor ib"},
        {{"-s", "127.0.0.1", "-t", "256"}, "-t 256: not a number from 0 to 255"},
        {{"-a", "32"}, "-a 32: not a number from 0 to 31"},
        {{"-s", "no such host"}, "-s no such host: "},
        {{"-s", ""}, "-s '': not an address"},
        {{"-s", "127.0.0.1", "-p", "0"}, "-p 0: only a server"},
        {{"-z"}, "-z is not an option"},
        {{"-c"}, "-c needs an argument"},
        {{"extra"}, "extra: not an option"},
    };
    for (const auto& one : cases) {
        expect_complaint(run_program("ucmatose", one.words), one.complaint);
    }
}

void test_help_and_version() {
    const Ended help = run_program("ucmatose", {"-h"});
    EXPECT_EQ(help.status, 0);
    for (const char letter : std::string("sbfPcCStam")) {
        EXPECT(holds(help.output, std::string("-") + letter));
    }
    EXPECT_EQ(run_program("ucmatose", {"--version"}).status, 0);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_messages_pass_and_are_counted),
        FABTEST(test_many_connections_at_once),
        FABTEST(test_more_messages_than_a_queue_holds),
        FABTEST(test_messages_of_one_byte_and_of_a_million),
        FABTEST(test_connections_alone),
        FABTEST(test_all_may_move_to_another_event_queue),
        FABTEST(test_every_format_of_address),
        FABTEST(test_ipv6),
        FABTEST(test_ends_that_differ_are_told_so),
        FABTEST(test_nobody_listens),
        FABTEST(test_a_client_that_is_killed_ends_its_server),
        FABTEST(test_a_server_that_is_killed_ends_its_client),
        FABTEST(test_an_interruption_ends_both),
        FABTEST(test_a_peer_that_is_silent_is_not_waited_for_without_end),
        FABTEST(test_json_is_one_line),
        FABTEST(test_what_only_rdmacm_can_do_is_refused_by_name),
        FABTEST(test_bad_options_are_named),
        FABTEST(test_help_and_version),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("ucmatose", tests, nullptr, nullptr);
}
