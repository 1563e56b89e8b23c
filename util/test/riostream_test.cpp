// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// riostream end to end: our server with our client, over the tcp core of libfabric on this host; and each with the
// riostream of rdma-core. What it shares with rstream is tested in rstream_test.cpp.
#include <csignal>

#include "fabtests/common/test.hpp"
#include "util/test/streaming_pair.hpp"

namespace {

using namespace util_test;

struct Server : StreamServer {
    explicit Server(const Words& more = {}, const std::string& address = "127.0.0.1")
        : StreamServer("riostream", more, address) {}
};
struct Client : StreamClient {
    explicit Client(const std::string& port, const Words& more = {}, const std::string& address = "127.0.0.1")
        : StreamClient("riostream", port, more, address) {}
};

const Words modes[] = {{"-T", "n"}, {"-T", "b"}, {"-T", "a"}};
const Words lengthy{"-S", "all", "-I", "1000"}; // its first row, soon there, tells that data moves

// Of those that move data. ThreadSanitizer works out a report for each byte that the peer wrote and that is compared,
// and drops it (scripts/tsan.supp): that takes so long that the ends give each other up.
void move_data() {
#if defined(__SANITIZE_THREAD__)
    throw fabtests::Skip("ThreadSanitizer takes minutes over memory that a peer has written");
#endif
}

void test_writes_of_every_size_arrive_in_every_mode() {
    move_data();
    for (const auto& mode : modes) {
        for (const char* size : {"1", "2", "64", "1000", "64K", "1048577"}) {
            const Words options = mode + Words{"-S", size, "-C", "5", "-I", "3", "-T", "v"};
            Server server(options);
            Client client(server.port, options);
            expect_agreement(client, server);
        }
    }
}

// The byte that tells the end of a direction has been through all its values by then.
void test_directions_are_told_apart_beyond_256() {
    move_data();
    const Words options{"-S", "10", "-C", "2", "-I", "1000", "-T", "v"};
    Server server(options);
    Client client(server.port, options);
    expect_agreement(client, server);
}

void test_the_series_maps_anew_for_each_test() {
    move_data();
    const Words series{"-S", "all", "-I", "10", "-C", "10", "-T", "v"};
    Server server(series);
    Client client(server.port, series);
    expect_success(client);
    expect_success(server);
    EXPECT_EQ(count_lines(client.output()), 67U);
    for (const char* name : {"64_lat", "4k_lat", "96k_lat", "6m_lat", "64_bw", "4k_bw", "96k_bw", "6m_bw"}) {
        EXPECT_EQ(columns(client, name), columns(server, name));
    }
    EXPECT_EQ(columns(client, "1m_bw"), std::string("1m_bw     1m      10      1       20m     "));
    EXPECT(client.output().starts_with("name      bytes   xfers   iters   total       time     Gb/sec    usec/xfer\n"));
}

void test_json_and_histogram() {
    move_data();
    const Words options{"--json", "--histogram", "-C", "3", "-I", "20"};
    Process server("riostream", Words{"-b", "127.0.0.1", "-p", "0"} + options);
    const std::string port = port_of_json(server);
    Client client(port, options);
    expect_success(client);
    expect_success(server);
    EXPECT_EQ(count_lines(client.output()), 1U);
    EXPECT(has_json(client, {{"program", "riostream"}, {"role", "client"}, {"transport", "rsocket"}}));
    EXPECT(has_json(client, {{"test", "custom"}, {"size", 1000}, {"transfers", 3}, {"iterations", 20}}));
    EXPECT(util::Json::parse(client.output()).at("latency_us").at("min") > 0);
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
    move_data();
    Server server({"-T", "v", "-C", "3"});
    Client client(server.port, {"-C", "3"});
    expect_complaint(server, "wrong data in a transfer, at byte 1; was -T v given to both ends?");
    expect_complaint(client, "127.0.0.1:" + server.port + ": waiting for a write: ");
}

void test_nobody_listens() {
    const HeldPort closed;
    expect_complaint(run_program("riostream", {"-s", "127.0.0.1", "-p", closed.port}),
                     "127.0.0.1:" + closed.port + ": cannot connect: Connection refused");
}

// While it waits for a write no call fails by itself.
void test_a_peer_that_is_killed_ends_the_other() {
    move_data();
    for (const Words& mode : {Words{"-T", "n"}, Words{"-T", "b"}}) {
        {
            Server server(lengthy + mode);
            Client client(server.port, lengthy + mode);
            client.line_with("64_lat ");
            server.signal(SIGKILL);
            expect_complaint(client, "127.0.0.1:" + server.port + ": ");
        }
        Server server(lengthy + mode);
        Client client(server.port, lengthy + mode);
        server.line_with("64_lat ");
        client.signal(SIGKILL);
        expect_complaint(server, "_lat, iteration ");
    }
}

void test_a_peer_that_is_silent_is_not_waited_for_without_end() {
    move_data();
    for (const Words& mode : {Words{"-T", "n"}, Words{"-T", "b"}}) {
        Server server(lengthy + mode);
        Client client(server.port, lengthy + mode + Words{"--timeout", "1"});
        client.line_with("64_lat ");
        server.signal(SIGSTOP);
        expect_complaint(client, ": nothing for 1 s; --timeout sets how long to wait (in ");
    }
}

void test_options_of_rstream_alone_are_refused() {
    expect_complaint(run_program("riostream", {"-k", "5"}), "riostream: -k is not an option that is known");
    expect_complaint(run_program("riostream", {"-T", "s"}),
                     "-T s: not one of a (async), b (blocking), n (nonblocking)");
    expect_complaint(run_program("riostream", {"-S", "0"}), "-S 0: not a number from 1 to ");
}

void test_help_and_version() {
    const Ended help = run_program("riostream", {"-h"});
    EXPECT_EQ(help.status, 0);
    for (const char letter : std::string("sbfBiICSpT")) {
        EXPECT(holds(help.output, std::string("\n  -") + letter));
    }
    EXPECT(!holds(help.output, "\n  -k"));
    EXPECT(holds(run_program("riostream", {"--version"}).output, "riostream of rstream "));
}

void test_each_end_may_be_rdma_cores() {
    move_data();
    const Words tests[] = {{"-S", "1000", "-C", "5", "-I", "300"}, {"-S", "70001", "-C", "3", "-I", "3"}};
    for (const Words& test : tests) {
        for (const Words& mode :
             {Words{"-T", "v"}, Words{"-T", "b", "-T", "v"}, Words{"-T", "a", "-T", "v"}, Words{}}) {
            {
                Server server(test + mode);
                RdmaCoreClient client("riostream", server.port, test + mode);
                expect_agreement(client, server);
            }
            const HeldPort port;
            RdmaCoreServer server("riostream", port, test + mode);
            Client client(port.port, test + mode);
            expect_agreement(client, server);
        }
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_writes_of_every_size_arrive_in_every_mode),
        FABTEST(test_directions_are_told_apart_beyond_256),
        FABTEST(test_the_series_maps_anew_for_each_test),
        FABTEST(test_json_and_histogram),
        FABTEST(test_ends_that_differ_are_told_so),
        FABTEST(test_verification_needs_both_ends),
        FABTEST(test_nobody_listens),
        FABTEST(test_a_peer_that_is_killed_ends_the_other),
        FABTEST(test_a_peer_that_is_silent_is_not_waited_for_without_end),
        FABTEST(test_options_of_rstream_alone_are_refused),
        FABTEST(test_help_and_version),
        FABTEST(test_each_end_may_be_rdma_cores),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("riostream", tests, nullptr, nullptr);
}
