// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// rstream end to end: our server with our client, over the tcp core of libfabric and the kernel's sockets on this host;
// and each with the rstream of rdma-core.
#include <csignal>
#include <cstdio>

#include "fabtests/common/test.hpp"
#include "util/test/streaming_pair.hpp"

namespace {

using namespace util_test;

struct Server : StreamServer {
    explicit Server(const Words& more = {}, const std::string& address = "127.0.0.1")
        : StreamServer("rstream", more, address) {}
};
struct Client : StreamClient {
    explicit Client(const std::string& port, const Words& more = {}, const std::string& address = "127.0.0.1")
        : StreamClient("rstream", port, more, address) {}
};

const Words modes[] = {{"-T", "n"}, {"-T", "b"}, {"-T", "a"}};
const Words endless{"-I", "1000000000", "-C", "1", "-S", "64"};

void stream_through(const Words& options) {
    Server server(options);
    Client client(server.port, options);
    expect_agreement(client, server);
}

void test_bytes_of_every_size_arrive_in_every_mode() {
    for (const auto& mode : modes) {
        for (const char* size : {"1", "64", "1000", "64K", "1048577"}) {
            stream_through(mode + Words{"-S", size, "-C", "5", "-I", "3", "-T", "v"});
        }
    }
}

void test_bytes_of_every_size_arrive_over_the_kernels_sockets() {
    for (const auto& mode : modes) {
        for (const char* size : {"1", "64K", "1048577"}) {
            stream_through(mode + Words{"-S", size, "-C", "5", "-I", "3", "-T", "v", "-T", "s"});
        }
    }
}

void test_the_modes_of_the_ends_need_not_be_the_same() {
    const Words test{"-S", "3000", "-C", "20", "-I", "5", "-T", "v"};
    Server server(test + Words{"-T", "b", "-B", "8K"});
    Client client(server.port, test + Words{"-T", "a", "-B", "256K"});
    expect_agreement(client, server);
}

void test_a_row_tells_what_was_moved() {
    Server server({"-S", "1536", "-C", "2000", "-I", "2"});
    Client client(server.port, {"-S", "1536", "-C", "2000", "-I", "2"});
    expect_agreement(client, server);
    EXPECT(client.output().starts_with("name      bytes   xfers   iters   total       time     Gb/sec    usec/xfer\n"));
    EXPECT_EQ(columns(client, "custom"), std::string("custom    1.5k    2k      2       11m     "));
    EXPECT_EQ(count_lines(client.output()), 2U);
    double seconds = 0;
    double gigabits = 0;
    double microseconds = 0;
    EXPECT_EQ(sscanf(client.output().c_str() + client.output().find('\n') + 43, "%lfs %lf %lf", &seconds, &gigabits,
                     &microseconds),
              3);
    EXPECT(seconds >= 0 && gigabits > 0 && microseconds > 0);
}

// The tests of the series, more than a gigabyte each.
void move_gigabytes() {
#if defined(__SANITIZE_THREAD__)
    throw fabtests::Skip("ThreadSanitizer takes minutes over gigabytes");
#endif
}

void test_the_series_runs_over_rsockets() {
    move_gigabytes();
    Server server({"-T", "b"});
    Client client(server.port, {"-T", "b"});
    expect_success(client);
    expect_success(server);
    EXPECT_EQ(count_lines(client.output()), 9U);
    for (const char* name : {"64_lat", "4k_lat", "64k_lat", "1m_lat", "64_bw", "4k_bw", "64k_bw", "1m_bw"}) {
        EXPECT_EQ(columns(client, name), columns(server, name));
    }
    EXPECT_EQ(columns(client, "64k_lat"), std::string("64k_lat   64k     1       1k      125m    "));
    EXPECT_EQ(columns(client, "1m_bw"), std::string("1m_bw     1m      100     1       200m    "));
}

// Each of the two connections has a child of its own, and the bytes of -T v go on from one to the other.
void test_the_series_is_served_by_children() {
    Server server({"-T", "f", "-T", "v", "-T", "b", "-S", "all", "-I", "10", "-C", "10"});
    Client client(server.port, {"-T", "s", "-T", "v", "-T", "b", "-S", "all", "-I", "10", "-C", "10"});
    expect_success(client);
    expect_success(server);
    EXPECT_EQ(count_lines(server.output(), "name "), 1U);
    EXPECT_EQ(count_lines(server.output()), 68U);
    EXPECT_EQ(columns(client, "1m_bw"), columns(server, "1m_bw"));
}

void test_a_child_that_fails_is_the_servers_failure() {
    Server server({"-T", "f", "-S", "100"});
    Client client(server.port, {"-T", "s", "-S", "200"});
    expect_complaint(client, "they must be the same");
    expect_complaint(server, "they must be the same");
}

void test_libfabric_resolves_the_address() {
    for (const char* name : {"localhost", "127.0.0.1"}) {
        Server server({"-T", "r", "-C", "3"});
        Client client(server.port, {"-T", "r", "-C", "3", "-b", "127.0.0.1"}, name);
        expect_agreement(client, server);
    }
    expect_complaint(run_program("rstream", {"-T", "r", "-s", "no such host"}),
                     "-s no such host: no provider of libfabric");
    expect_complaint(run_program("rstream", {"-T", "r", "-f", "ip", "-s", "localhost"}),
                     "-s localhost: not an IPv4 address");
}

void test_ipv6() {
    if (!has_ipv6()) {
        throw fabtests::Skip("no IPv6 here");
    }
    for (const Words& kind : {Words{}, Words{"-T", "s"}}) {
        Server server(kind + Words{"-f", "ipv6", "-C", "1000"}, "::1");
        Client client(server.port, kind + Words{"-f", "ipv6", "-C", "1000"}, "::1");
        expect_agreement(client, server);
    }
}

void test_a_server_without_an_address_listens_on_all() {
    Process server("rstream", {"-p", "0", "-C", "3"});
    Client client(port_of(server), {"-C", "3"});
    expect_agreement(client, server);
}

void test_a_histogram_is_of_every_iteration() {
    const Words test{"-S", "64", "-C", "1", "-I", "500", "--histogram"};
    Server server(test);
    Client client(server.port, test);
    expect_agreement(client, server);
    const std::string row = client.output().substr(client.output().find("\ncustom") + 1);
    double mean = 0;
    double p50 = 0;
    double p99 = 0;
    double p999 = 0;
    EXPECT_EQ(sscanf(row.c_str() + 61, "%lf %lf %lf %lf", &mean, &p50, &p99, &p999), 4);
    EXPECT(p50 > 0 && p50 <= p99 && p99 <= p999 && mean <= p999);
}

void test_json_is_one_line_a_test() {
    Process server("rstream", {"-b", "127.0.0.1", "-p", "0", "--json", "-C", "3", "-k", "9"});
    const std::string port = port_of_json(server);
    Client client(port, {"--json", "-C", "3", "-k", "9"});
    expect_success(client);
    expect_success(server);
    EXPECT_EQ(count_lines(client.output()), 1U);
    EXPECT_EQ(count_lines(server.output()), 2U);
    EXPECT(has_json(client, {{"program", "rstream"}, {"role", "client"}, {"transport", "rsocket"}, {"bytes", 6000}}));
    EXPECT(has_json(client, {{"test", "custom"}, {"size", 1000}, {"transfers", 3}, {"iterations", 1}}));
    EXPECT(util::Json::parse(client.output()).at("seconds") > 0);
}

void test_keepalive_is_set_and_told() {
    for (const Words& kind : {Words{}, Words{"-T", "s"}}) {
        Server server(kind + Words{"-C", "3", "-k", "7"});
        Client client(server.port, kind + Words{"-C", "3", "-k", "11"});
        expect_agreement(client, server);
        EXPECT(holds(client.output(), "\nKeepalive: ON\n  time: 11\n"));
        EXPECT(holds(server.output(), "\nKeepalive: ON\n  time: 7\n"));
    }
}

void test_ends_that_differ_are_told_so() {
    for (const Words& one : {Words{"-S", "64K"}, Words{"-C", "6"}, Words{"-I", "3"}}) {
        Server server(one);
        Client client(server.port, {"-S", "100"});
        expect_complaint(client, "127.0.0.1:" + server.port + ": the peer runs with -S ");
        expect_complaint(server, "they must be the same");
    }
}

void test_verification_needs_both_ends() {
    Server server({"-T", "v", "-C", "3"});
    Client client(server.port, {"-C", "3"});
    expect_complaint(client, "the peer runs with -T v, this end without");
    expect_complaint(server, "was -T v given to both ends?");
}

void test_nobody_listens() {
    const HeldPort closed;
    expect_complaint(run_program("rstream", {"-s", "127.0.0.1", "-p", closed.port}),
                     "127.0.0.1:" + closed.port + ": cannot connect: Connection refused");
    expect_complaint(run_program("rstream", {"-s", "127.0.0.1", "-p", closed.port, "-T", "s"}),
                     "127.0.0.1:" + closed.port + ": cannot connect: Connection refused; does a server listen there");
}

void test_addresses_that_are_none() {
    for (const Words& kind : {Words{}, Words{"-T", "s"}}) {
        expect_complaint(run_program("rstream", Words{"-s", "no such host"} + kind),
                         "-s no such host: not a host name");
        expect_complaint(run_program("rstream", Words{"-b", "192.0.2.1"} + kind),
                         "cannot bind to 192.0.2.1:7471: Cannot assign requested address");
        expect_complaint(run_program("rstream", Words{"-s", "127.0.0.1", "-b", "192.0.2.1"} + kind),
                         "cannot bind to 192.0.2.1: Cannot assign requested address");
        expect_complaint(run_program("rstream", Words{"-s", "127.0.0.1", "-f", "ipv6"} + kind),
                         "-s 127.0.0.1: not an IPv6 address");
    }
}

void test_a_port_that_is_taken() {
    for (const Words& kind : {Words{}, Words{"-T", "s"}}) {
        Server server(kind);
        expect_complaint(run_program("rstream", Words{"-b", "127.0.0.1", "-p", server.port} + kind),
                         "127.0.0.1:" + server.port + ": Address already in use");
    }
}

void test_a_peer_that_is_killed_ends_the_other() {
    for (const auto& mode : modes) {
        {
            Server server(endless + mode + Words{"-k", "100"});
            Client client(server.port, endless + mode);
            server.line_with("  time: "); // it is connected
            server.signal(SIGKILL);
            expect_complaint(client, "127.0.0.1:" + server.port + ": ");
        }
        Server server(endless + mode);
        Client client(server.port, endless + mode + Words{"-k", "100"});
        client.line_with("  time: ");
        client.signal(SIGKILL);
        expect_complaint(server, " (in custom, iteration ");
    }
}

void test_a_peer_that_is_silent_is_not_waited_for_without_end() {
    for (const auto& mode : modes) {
        Server server(endless + mode);
        Client client(server.port, endless + mode + Words{"--timeout", "1", "-k", "100"});
        client.line_with("  time: ");
        server.signal(SIGSTOP);
        expect_complaint(client, ": nothing for 1 s; --timeout sets how long to wait (in custom, iteration ");
    }
}

void test_a_server_waits_for_a_client_no_longer_than_it_was_told() {
    for (const Words& kind : {Words{}, Words{"-T", "s"}}) {
        Server server(kind + Words{"--timeout", "1"});
        expect_complaint(server, "127.0.0.1:" + server.port + ": no client came within 1 s");
    }
}

void test_bad_options_are_named() {
    expect_complaint(run_program("rstream", {"-S", "0"}), "rstream: -S 0: not a number from 1 to ");
    expect_complaint(run_program("rstream", {"-T", "x"}), "-T x: not one of a (async)");
    expect_complaint(run_program("rstream", {"-Z"}), "-Z is not an option");
}

void test_help_and_version() {
    const Ended help = run_program("rstream", {"-h"});
    EXPECT_EQ(help.status, 0);
    for (const char letter : std::string("sbfBiICSpTk")) {
        EXPECT(holds(help.output, std::string("\n  -") + letter));
    }
    EXPECT(holds(run_program("rstream", {"--version"}).output, "rstream of rstream "));
}

// Both ends with verification, so that each byte of both programs is seen to be the same.
void test_each_end_may_be_rdma_cores() {
    const Words tests[] = {{"-S", "1000", "-C", "50", "-I", "20"}, {"-S", "70001", "-C", "3", "-I", "3"}};
    for (const Words& test : tests) {
        for (const Words& mode :
             {Words{"-T", "v"}, Words{"-T", "b", "-T", "v"}, Words{"-T", "a", "-T", "v"}, Words{}}) {
            {
                Server server(test + mode);
                RdmaCoreClient client("rstream", server.port, test + mode);
                expect_agreement(client, server);
            }
            const HeldPort port;
            RdmaCoreServer server("rstream", port, test + mode);
            Client client(port.port, test + mode);
            expect_agreement(client, server);
        }
    }
}

void test_each_end_may_be_rdma_cores_over_the_kernels_sockets() {
    const Words test{"-S", "1000", "-C", "50", "-I", "20", "-T", "s", "-T", "v"};
    {
        Server server(test);
        RdmaCoreClient client("rstream", server.port, test);
        expect_agreement(client, server);
    }
    const HeldPort port;
    RdmaCoreServer server("rstream", port, test);
    Client client(port.port, test);
    expect_agreement(client, server);
    EXPECT_EQ(client.output().substr(0, client.output().find('\n')),
              server.output().substr(0, server.output().find('\n')));
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_bytes_of_every_size_arrive_in_every_mode),
        FABTEST(test_bytes_of_every_size_arrive_over_the_kernels_sockets),
        FABTEST(test_the_modes_of_the_ends_need_not_be_the_same),
        FABTEST(test_a_row_tells_what_was_moved),
        FABTEST(test_the_series_runs_over_rsockets),
        FABTEST(test_the_series_is_served_by_children),
        FABTEST(test_a_child_that_fails_is_the_servers_failure),
        FABTEST(test_libfabric_resolves_the_address),
        FABTEST(test_ipv6),
        FABTEST(test_a_server_without_an_address_listens_on_all),
        FABTEST(test_a_histogram_is_of_every_iteration),
        FABTEST(test_json_is_one_line_a_test),
        FABTEST(test_keepalive_is_set_and_told),
        FABTEST(test_ends_that_differ_are_told_so),
        FABTEST(test_verification_needs_both_ends),
        FABTEST(test_nobody_listens),
        FABTEST(test_addresses_that_are_none),
        FABTEST(test_a_port_that_is_taken),
        FABTEST(test_a_peer_that_is_killed_ends_the_other),
        FABTEST(test_a_peer_that_is_silent_is_not_waited_for_without_end),
        FABTEST(test_a_server_waits_for_a_client_no_longer_than_it_was_told),
        FABTEST(test_bad_options_are_named),
        FABTEST(test_help_and_version),
        FABTEST(test_each_end_may_be_rdma_cores),
        FABTEST(test_each_end_may_be_rdma_cores_over_the_kernels_sockets),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("rstream", tests, nullptr, nullptr);
}
