// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// rping end to end: our server with our clients, over the tcp core of libfabric on this host.
#include <csignal>
#include <cstring>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fabtests/common/test.hpp"
#include "util/common/choice.hpp"
#include "util/common/failure.hpp"
#include "util/common/waiter.hpp"
#include "util/rping/wire.hpp"
#include "util/test/network.hpp"
#include "util/test/process.hpp"

namespace {

using namespace util_test;
using fabtests::Failure;
using Words = std::vector<std::string>;

Words operator+(Words a, const Words& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

const Words on_tcp{"--provider", "tcp"};

struct Server : Process {
    explicit Server(const Words& more = {}, const std::string& address = "127.0.0.1")
        : Process("rping", Words{"-s", "-a", address, "-p", "0"} + on_tcp + more), port(port_of(*this)) {}
    std::string port;
};

struct Client : Process {
    explicit Client(const std::string& port, const Words& more = {}, const std::string& address = "127.0.0.1")
        : Process("rping", Words{"-c", "-a", address, "-p", port} + on_tcp + more) {}
};

void ping_through(const Words& options, const Words& server_only = {}) {
    Server server(Words{"-C", "5", "-V"} + options + server_only);
    Client client(server.port, Words{"-C", "5", "-V"} + options);
    expect_success(client);
    expect_success(server);
    EXPECT(holds(client.output(), "5 pings of "));
    EXPECT(holds(client.output(), "round trip in us: min "));
    EXPECT(holds(server.output(), "5 pings of "));
}

void test_pings_pass_and_are_counted() { ping_through({}); }
void test_pings_of_every_size_are_valid() {
    for (const char* size : {"23", "24", "64", "1000", "4096", "65536", "1M"}) {
        ping_through({"-S", size});
    }
}
void test_queues_may_be_the_applications_own() { ping_through({"-q"}); }

void test_verbose_prints_the_data_that_users_know() {
    Server server({"-v", "-S", "64"});
    Client client(server.port, {"-v", "-S", "64", "-C", "2"});
    EXPECT_EQ(client.line(),
              std::string("ping data: rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqr"));
    EXPECT_EQ(client.line(),
              std::string("ping data: rdma-ping-1: BCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrs"));
    EXPECT_EQ(server.line(),
              std::string("server ping data: rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqr"));
    expect_success(client);
    expect_success(server);
    EXPECT_EQ(count_lines(client.output(), "ping data: "), 2U);
    EXPECT_EQ(count_lines(server.output(), "server ping data: "), 2U);
}

void test_without_a_provider_the_address_chooses() {
    Process server("rping", {"-s", "-a", "127.0.0.1", "-p", "0", "-C", "2"});
    Process client("rping", {"-c", "-a", "localhost", "-p", port_of(server), "-C", "2", "-I", "127.0.0.1"});
    expect_success(client);
    expect_success(server);
}

void test_any_address_is_listened_on_and_ipv6_works() {
    {
        Server server({"-C", "2"}, "0.0.0.0");
        Client client(server.port, {"-C", "2"});
        expect_success(client);
        expect_success(server);
    }
    if (!has_ipv6()) {
        throw fabtests::Skip("no IPv6 here");
    }
    for (const char* address : {"::0", "::1"}) {
        Server server({"-C", "2", "-V"}, address);
        Client client(server.port, {"-C", "2", "-V"}, "::1");
        expect_success(client);
        expect_success(server);
    }
}

void test_a_persistent_server_has_many_clients_at_once() {
    constexpr size_t number = 6;
    Server server({"-P", "-V"});
    std::vector<std::unique_ptr<Client>> clients;
    for (size_t i = 0; i < number; ++i) {
        clients.push_back(std::make_unique<Client>(server.port, Words{"-v", "-V"}));
    }
    for (auto& client : clients) {
        client->line_with("ping data: rdma-ping-20: "); // each is being served while all others are connected
    }
    for (auto& client : clients) {
        client->signal(SIGINT);
        expect_success(*client);
        EXPECT(holds(client->output(), "round trip in us: min "));
    }
    for (size_t i = 0; i < number; ++i) {
        server.line_with("127.0.0.1:");
    }
    server.signal(SIGINT);
    expect_success(server);
    EXPECT(holds(server.output(), "6 clients, 0 of them failed, "));
}

void test_an_interrupted_persistent_server_takes_leave() {
    Server server({"-P"});
    Client client(server.port, {"-v"});
    client.line_with("ping data: rdma-ping-5: ");
    server.signal(SIGTERM);
    expect_success(server);
    EXPECT(holds(server.output(), "1 clients, "));
    expect_complaint(client, "the server has disconnected after ");
}

void test_pings_go_on_until_interrupted() {
    Server server;
    Client client(server.port, {"-v", "-C", "0"});
    client.line_with("ping data: rdma-ping-100: ");
    client.signal(SIGINT);
    expect_success(client);
    expect_success(server);
    EXPECT(holds(client.output(), "round trip in us: "));
    EXPECT(holds(server.output(), " pings of 100 bytes"));
}

void test_an_interrupted_count_is_not_a_success() {
    Server server;
    Client client(server.port, {"-v", "-C", "1000000000"});
    client.line_with("ping data: rdma-ping-3: ");
    client.signal(SIGINT);
    EXPECT_EQ(client.status(), 1);
    EXPECT(holds(client.output(), "interrupted: "));
    expect_success(server);
}

void test_sizes_that_differ_are_named_at_both_ends() {
    Server server({"-S", "200"});
    Client client(server.port, {"-S", "100", "-C", "1"});
    expect_complaint(client, "the server's messages have 200 bytes and ours 100; give both the same -S");
    expect_complaint(server, "the client's messages have 100 bytes and ours 200; give both the same -S");
}

void test_a_client_of_another_size_does_not_end_a_persistent_server() {
    Server server({"-P"});
    Client wrong(server.port, {"-S", "101", "-C", "1"});
    expect_complaint(wrong, "give both the same -S");
    Client right(server.port, {"-C", "3"});
    expect_success(right);
    server.line_with("127.0.0.1:");
    server.signal(SIGINT);
    EXPECT_EQ(server.status(), 0);
    EXPECT(holds(server.output(), "2 clients, 1 of them failed, 3 pings"));
    EXPECT_EQ(count_lines(server.errors(), "rping: 127.0.0.1:"), 1U);
}

void test_a_server_with_a_count_holds_the_client_to_it() {
    {
        Server server({"-C", "3"});
        Client client(server.port, {"-C", "5"});
        expect_complaint(client, "the server has disconnected after 3 of 5 pings");
        expect_complaint(server, "more than 3 pings");
    }
}

void test_refused() {
    const HeldPort closed;
    expect_complaint(run_program("rping", Words{"-c", "-a", "127.0.0.1", "-p", closed.port} + on_tcp),
                     "127.0.0.1:" + closed.port + ": connection refused");
}

// Kernel TCP, whatever it is told.
void test_a_server_of_another_kind() {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    EXPECT(bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 && listen(fd, 1) == 0);
    EXPECT(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0);
    Client client(std::to_string(ntohs(address.sin_port)));
    const int connection = accept(fd, nullptr, nullptr);
    const std::string junk(1000, 'x');
    EXPECT_EQ(send(connection, junk.data(), junk.size(), MSG_NOSIGNAL), static_cast<ssize_t>(junk.size()));
    expect_complaint(client, "127.0.0.1:");
    close(connection);
    close(fd);
}

void test_a_port_that_is_taken() {
    const Server first({"-P"});
    expect_complaint(run_program("rping", Words{"-s", "-a", "127.0.0.1", "-p", first.port} + on_tcp), "-p 0 picks");
}

void test_addresses_that_are_none() {
    expect_complaint(run_program("rping", Words{"-c", "-a", "no such host"} + on_tcp), "-a no such host: ");
    expect_complaint(run_program("rping", Words{"-c", "-a", ""} + on_tcp), "-a");
    expect_complaint(run_program("rping", Words{"-c", "-a", "127.0.0.1", "-I", "no such host"} + on_tcp),
                     "-I no such host: ");
    expect_complaint(run_program("rping", Words{"-c", "-a", "127.0.0.1", "-I", "::1"} + on_tcp), "-I ::1: ");
    expect_complaint(run_program("rping", Words{"-s", "-a", "192.0.2.77", "-p", "0"} + on_tcp), "192.0.2.77");
}

void test_a_server_that_is_killed_ends_its_client() {
    Server server({"-P"});
    Client client(server.port, {"-v"});
    client.line_with("ping data: rdma-ping-5: ");
    server.signal(SIGKILL);
    expect_complaint(client, "after ");
}

void test_a_client_that_is_killed_ends_its_server() {
    Server server;
    Client client(server.port, {"-v"});
    client.line_with("ping data: rdma-ping-5: ");
    client.signal(SIGKILL);
    expect_complaint(server, "in mid-run, after ");
}

void test_a_peer_that_is_silent_is_not_waited_for_without_end() {
    Server server({"-P", "--timeout", "1"});
    Client client(server.port, {"-v", "--timeout", "1"});
    client.line_with("ping data: rdma-ping-5: ");
    server.signal(SIGSTOP);
    expect_complaint(client, "nothing from the server for 1 s after ");
    server.signal(SIGCONT);
    Client stopped(server.port, {"-v"});
    stopped.line_with("ping data: rdma-ping-5: ");
    stopped.signal(SIGSTOP);
    server.line_with("127.0.0.1:");
    server.line_with("127.0.0.1:");
    server.signal(SIGINT);
    EXPECT_EQ(server.status(), 0);
    EXPECT(holds(server.errors(), "nothing from the client for 1 s in mid-run"));
}

void test_a_server_waits_for_a_client_no_longer_than_it_was_told() {
    Server server({"--timeout", "1"});
    expect_complaint(server, "no client within 1 s");
}

void test_json_is_one_line_each() {
    Process server("rping", Words{"-s", "-a", "127.0.0.1", "-p", "0", "--json", "-v"} + on_tcp);
    const std::string port = port_of_json(server);
    Client client(port, {"-C", "3", "--json"});
    EXPECT_EQ(client.status(), 0);
    EXPECT_EQ(server.status(), 0);
    EXPECT_EQ(count_lines(client.output()), 1U);
    EXPECT(has_json(client, {{"program", "rping"}, {"role", "client"}, {"backend", "fabric"}, {"status", "complete"}}));
    EXPECT(has_json(client, {{"size", 100}, {"pings", 3}, {"bytes", 600}}));
    const auto summary = util::Json::parse(client.output());
    EXPECT(summary.at("device").get<std::string>().starts_with("tcp "));
    EXPECT(summary.at("seconds").get<double>() > 0);
    const auto& times = summary.at("round_trip_us");
    EXPECT(times.at("min") > 0 && times.at("min") <= times.at("p50") && times.at("p50") <= times.at("p99.9"));
    EXPECT_EQ(count_lines(server.output()), 2U);
    EXPECT(holds(server.output(), R"("role":"server")"));
    EXPECT_EQ(count_lines(server.errors(), "server ping data: "), 3U);
}

void test_bad_options_are_named() {
    const struct {
        Words words;
        const char* complaint;
    } cases[] = {
        {{}, "-s (server) and -c (client)"},
        {{"-s", "-c", "-a", "127.0.0.1"}, "only one of -s"},
        {{"-c"}, "give it with -a"},
        {{"-s", "-S", "0"}, "-S 0: not a number from 23 to "},
        {{"-s", "-S", "65M"}, "-S 65M: not a number from 23 to "},
        {{"-s", "-C", "many"}, "-C many: not a number"},
        {{"-s", "-C", "-1"}, "-C -1: not a number"},
        {{"-s", "-p", "65536"}, "-p 65536: not a number"},
        {{"-s", "-p"}, "-p needs an argument"},
        {{"-s", "-x"}, "-x is not an option"},
        {{"-s", "--nonsense"}, "--nonsense is not an option"},
        {{"-s", "--verbose=yes"}, "--verbose takes no argument"},
        {{"-s", "--port"}, "--port needs an argument"},
        {{"-s", "more"}, "more: not an option"},
        {{"-s", "--backend", "pigeon"}, "--backend pigeon: neither fabric nor rdmacm"},
        {{"-s", "--timeout", "soon"}, "--timeout soon: not a number"},
        {{"-s", "-a", "127.0.0.1", "--provider", "pigeon"}, "provider pigeon has no endpoint"},
        {{"-s", "--provider", "tcp", "--backend", "rdmacm"}, "--provider tcp: the rdmacm backend has no providers"},
        {{"-s", "-I", "127.0.0.1"}, "-I: only a client"},
        {{"-c", "-a", "127.0.0.1", "-P"}, "-P: only a server"},
    };
    for (const auto& one : cases) {
        expect_complaint(run_program("rping", one.words), one.complaint);
    }
}

void test_help_and_version() {
    const Ended help = run_program("rping", {"--help"});
    EXPECT_EQ(help.status, 0);
    for (const char letter : std::string("saIpvVdCSPq")) {
        EXPECT(holds(help.output, std::string("-") + letter));
    }
    EXPECT_EQ(run_program("rping", {"--version"}).status, 0);
}

// ---- A peer that is no rping, or an evil one

// A connection to a server, by our own backend, that says what it likes.
class Stranger {
  public:
    explicit Stranger(const std::string& port) {
        util::CommonOptions options;
        options.provider = "tcp";
        const auto remote = util::resolve_address("-a", "127.0.0.1", static_cast<uint16_t>(std::stoi(port)));
        backend_ = util::open_backend(options, std::nullopt, remote);
        events_ = backend_->open_events();
        connection_ = backend_->open(*events_, std::nullopt, remote);
        connection_->make_queues({.sends = 4, .receives = 4});
        out_ = connection_->allocate(1000, util::Access::remote);
        in_ = connection_->allocate(64, util::Access::local);
        connection_->receive(*in_, 64);
        connection_->connect({});
        await([&] { return established_; });
    }

    void say(size_t length) { connection_->send(*out_, length); }
    void advertise(const rping::Advertisement& what) {
        const auto bytes = what.encode();
        memcpy(out_->bytes().data(), bytes.data(), bytes.size());
        say(bytes.size());
    }
    [[nodiscard]] rping::Advertisement honest(uint32_t size) const {
        return {out_->remote_address(), static_cast<uint32_t>(out_->remote_key()), size};
    }
    void await_answer() {
        const unsigned before = answers_;
        await([&] { return answers_ > before; });
    }
    void await_end() {
        await([&] { return ended_; });
    }

  private:
    template <class Condition> void await(Condition condition) {
        const auto deadline = util::Clock::now() + std::chrono::milliseconds(fabtests::patience(30000));
        while (!condition()) {
            while (auto event = events_->next()) {
                established_ = established_ || event->type == util::Event::Type::established;
                ended_ = ended_ || event->type == util::Event::Type::disconnected;
            }
            while (auto completion = connection_->completion()) {
                ended_ = ended_ || completion->failed;
                answers_ += !completion->failed && completion->operation == util::Operation::receive ? 1 : 0;
            }
            util::Waitable* things[] = {events_.get(), connection_.get()};
            if (!condition() && waiter_.wait(things, deadline) == util::Waiter::Outcome::timed_out) {
                throw Failure("the server does not react");
            }
        }
    }

    util::Waiter waiter_;
    std::unique_ptr<util::Backend> backend_;
    std::unique_ptr<util::EventQueue> events_;
    std::unique_ptr<util::Memory> out_;
    std::unique_ptr<util::Memory> in_;
    std::unique_ptr<util::Connection> connection_;
    bool established_ = false;
    bool ended_ = false;
    unsigned answers_ = 0;
};

void test_a_server_without_a_size_takes_that_of_a_client_of_rdma_core() {
    Server server;
    {
        Stranger stranger(server.port);
        stranger.advertise(stranger.honest(40));
        stranger.await_answer();
    }
    expect_complaint(server, "in mid-run, after 0 pings"); // it left too early, but was heard
}

void test_messages_that_are_no_advertisements_are_refused() {
    Server server({"-P", "-S", "64"});
    for (const size_t length : {size_t{1}, size_t{4}, size_t{15}, size_t{17}, size_t{1000}}) {
        Stranger stranger(server.port);
        stranger.say(length);
        stranger.await_end();
    }
    for (const uint32_t size : {0U, 1U, 63U, 65U, 0xffffffffU}) {
        Stranger stranger(server.port);
        stranger.advertise(stranger.honest(size));
        stranger.await_end();
    }
    {
        Stranger stranger(server.port); // memory that is not there
        stranger.advertise({0xdeadbeef, 0x12345678, 64});
        stranger.await_end();
    }
    Client client(server.port, {"-C", "3", "-S", "64"}); // and the server is as before
    expect_success(client);
    for (int i = 0; i < 12; ++i) {
        server.line_with("127.0.0.1:");
    }
    server.signal(SIGINT);
    EXPECT_EQ(server.status(), 0);
    EXPECT(holds(server.output(), "12 clients, 11 of them failed, 3 pings"));
    EXPECT_EQ(count_lines(server.errors()), 11U);
}

void test_data_of_another_pattern_is_noticed() {
    Server server({"-V"});
    Stranger stranger(server.port);
    stranger.advertise(stranger.honest(64)); // its bytes are those of the advertisement
    stranger.await_end();
    expect_complaint(server, "data mismatch in ping 0: byte 0 is ");
}

void test_bytes_that_are_not_of_the_fabric_do_no_harm() {
    Server server({"-P"});
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(std::stoi(server.port)));
    EXPECT(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    const std::string junk = "GET / HTTP/1.1\r\nHost: nobody\r\n\r\n";
    EXPECT_EQ(send(fd, junk.data(), junk.size(), 0), static_cast<ssize_t>(junk.size()));
    Client client(server.port, {"-C", "3"});
    expect_success(client);
    close(fd);
    server.line_with("127.0.0.1:");
    server.signal(SIGINT);
    EXPECT_EQ(server.status(), 0);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_pings_pass_and_are_counted),
        FABTEST(test_pings_of_every_size_are_valid),
        FABTEST(test_queues_may_be_the_applications_own),
        FABTEST(test_verbose_prints_the_data_that_users_know),
        FABTEST(test_without_a_provider_the_address_chooses),
        FABTEST(test_any_address_is_listened_on_and_ipv6_works),
        FABTEST(test_a_persistent_server_has_many_clients_at_once),
        FABTEST(test_an_interrupted_persistent_server_takes_leave),
        FABTEST(test_pings_go_on_until_interrupted),
        FABTEST(test_an_interrupted_count_is_not_a_success),
        FABTEST(test_sizes_that_differ_are_named_at_both_ends),
        FABTEST(test_a_client_of_another_size_does_not_end_a_persistent_server),
        FABTEST(test_a_server_with_a_count_holds_the_client_to_it),
        FABTEST(test_refused),
        FABTEST(test_a_server_of_another_kind),
        FABTEST(test_a_port_that_is_taken),
        FABTEST(test_addresses_that_are_none),
        FABTEST(test_a_server_that_is_killed_ends_its_client),
        FABTEST(test_a_client_that_is_killed_ends_its_server),
        FABTEST(test_a_peer_that_is_silent_is_not_waited_for_without_end),
        FABTEST(test_a_server_waits_for_a_client_no_longer_than_it_was_told),
        FABTEST(test_json_is_one_line_each),
        FABTEST(test_bad_options_are_named),
        FABTEST(test_help_and_version),
        FABTEST(test_a_server_without_a_size_takes_that_of_a_client_of_rdma_core),
        FABTEST(test_messages_that_are_no_advertisements_are_refused),
        FABTEST(test_data_of_another_pattern_is_noticed),
        FABTEST(test_bytes_that_are_not_of_the_fabric_do_no_harm),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("rping", tests, nullptr, nullptr);
}
