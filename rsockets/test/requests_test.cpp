// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Connection requests that a listener cannot serve: each is refused at once, however many there are. Listener and
// clients are processes of their own.
#include <cerrno>
#include <csignal>
#include <string>
#include <vector>

#include <poll.h>
#include <pthread.h>

#include "fabtests/common/child.hpp"
#include "rsockets/test/fabric_hook.hpp"
#include "rsockets/test/sockets.hpp"

namespace {

using namespace fabtests;
using namespace rsocket_test;

constexpr int clients_each = 100; // sockets of one process, which may open 1024 descriptors
constexpr int client_processes = 2;
constexpr int all_clients = clients_each * client_processes;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t small_stack = size_t{512} << 10;
#else
constexpr size_t small_stack = size_t{64} << 10;
#endif

void begin_to_connect(int fd, uint16_t port) {
    const sockaddr_in to = loopback(port);
    EXPECT_EQ(rconnect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), -1);
    EXPECT_EQ(errno, EINPROGRESS);
}

// What the connect that is under way ends in; 0 if well.
int outcome(int fd) {
    pollfd one{fd, POLLOUT, 0};
    EXPECT_EQ(rpoll(&one, 1, patience(10000)), 1);
    int error = -1;
    socklen_t length = sizeof(error);
    EXPECT_EQ(rgetsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length), 0);
    return error;
}

// Listens until its parent ends it.
void role_cannot_serve(const std::vector<std::string>& arguments) {
    (arguments.at(0) == "domain" ? fabric_hook.no_domains : fabric_hook.no_endpoints).store(true);
    const Number from = listener();
    say(std::to_string(port_of(from)));
    (void)listen_to_parent(patience(60000));
}

// Connects many sockets at once, and says how many were refused.
void role_clients(const std::vector<std::string>& arguments) {
    const auto port = static_cast<uint16_t>(std::stoi(arguments.at(0)));
    std::vector<Number> all;
    for (int i = 0; i < clients_each; ++i) {
        all.emplace_back(rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
        begin_to_connect(all.back(), port);
    }
    (void)listen_to_parent(patience(60000)); // the listener has them, and goes on
    int refused = 0;
    for (const Number& fd : all) {
        refused += outcome(fd) == ECONNREFUSED ? 1 : 0;
    }
    say(std::to_string(refused));
}

int in_small_thread(int from) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    EXPECT_EQ(pthread_attr_setstacksize(&attributes, small_stack), 0);
    pthread_t thread{};
    const auto accept = [](void* argument) -> void* {
        auto& fd = *static_cast<int*>(argument);
        fd = raccept(fd, nullptr, nullptr);
        return nullptr;
    };
    EXPECT_EQ(pthread_create(&thread, &attributes, accept, &from), 0);
    EXPECT_EQ(pthread_join(thread, nullptr), 0);
    return from;
}

// Has space for one connection; the other requests wait behind it, and fail once it is accepted.
void role_serves_one(const std::vector<std::string>&) {
    const Number from = listener(0);
    say(std::to_string(port_of(from)));
    await_requests(all_clients);
    fabric_hook.no_endpoints.store(true);
    const Number accepted(in_small_thread(from));
    EXPECT(accepted >= 0);
    say("accepted");
    (void)listen_to_parent(patience(60000));
}

void test_a_request_that_cannot_be_served_is_refused_at_once() {
    for (const char* missing : {"domain", "endpoint"}) {
        Child server("cannot_serve", {missing});
        const Number fd(rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
        begin_to_connect(fd, static_cast<uint16_t>(std::stoi(server.hear())));
        EXPECT_EQ(outcome(fd), ECONNREFUSED);
    }
}

void test_many_waiting_requests_that_fail_take_little_stack() {
    Child server("serves_one");
    const std::string port = server.hear();
    Child first("clients", {port});
    Child second("clients", {port});
    EXPECT_EQ(server.hear(patience(60000)), "accepted");
    int refused = 0;
    for (Child* clients : {&first, &second}) {
        clients->tell("go on");
        refused += std::stoi(clients->hear(patience(60000)));
        clients->finish();
    }
    EXPECT_EQ(refused, all_clients - 1);
}

} // namespace

int main(int argc, char** argv) {
    signal(SIGPIPE, SIG_IGN);
    const Role roles[] = {
        {"cannot_serve", role_cannot_serve}, {"clients", role_clients}, {"serves_one", role_serves_one}};
    if (const auto status = play_role(argc, argv, roles)) {
        return *status;
    }
    const CMUnitTest tests[] = {
        FABTEST(test_a_request_that_cannot_be_served_is_refused_at_once),
        FABTEST(test_many_waiting_requests_that_fail_take_little_stack),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
