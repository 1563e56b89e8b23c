// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The fabric fails behind a close: a server, this program again, sends and closes while the client's worker stands
// still, and that worker is killed. closed_recovery_test.sh runs it, with a worker whose process id is in a file.
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include <fcntl.h>
#include <sys/wait.h>

#include "preload/test/pair.hpp"

namespace {

constexpr size_t greeting = 10;
constexpr size_t rest = 60000; // what a ring takes before its reader has read a byte

uint8_t pattern(size_t i) { return static_cast<uint8_t>(i * 2654435761U >> 11); }

sockaddr_in loopback(uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = port;
    return address;
}

// Descriptor 0 says when to send, and when to exit; 1 gets the port, and a byte when it has closed.
int serve(bool exits) {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = loopback(0);
    socklen_t length = sizeof(address);
    if (bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
        write(1, &address.sin_port, sizeof(address.sin_port)) != sizeof(address.sin_port)) {
        return 1;
    }
    const int connection = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    std::array<char, greeting> bytes{};
    for (;;) {
        const ssize_t n = recv(connection, bytes.data(), bytes.size(), MSG_WAITALL);
        if (n != static_cast<ssize_t>(greeting) || send(connection, bytes.data(), greeting, 0) != n) {
            return 1;
        }
        if (bytes[0] == 'l') {
            break; // the last one
        }
    }
    char byte = 0;
    std::string data(rest, '\0');
    for (size_t i = 0; i < rest; ++i) {
        data[i] = static_cast<char>(pattern(i));
    }
    if (read(0, &byte, 1) != 1 || send(connection, data.data(), rest, 0) != static_cast<ssize_t>(rest)) {
        return 1;
    }
    if (!exits && close(connection) != 0) {
        return 1;
    }
    if (!exits && (write(1, "c", 1) != 1 || read(0, &byte, 1) != 0)) {
        return 1;
    }
    return 0;
}

struct Server {
    explicit Server(const char* how) {
        std::array<int, 2> in{};
        std::array<int, 2> out{};
        EXPECT_EQ(pipe2(in.data(), O_CLOEXEC), 0);
        EXPECT_EQ(pipe2(out.data(), O_CLOEXEC), 0);
        pid = fork();
        if (pid == 0) {
            dup2(in[0], 0);
            dup2(out[1], 1);
            setenv("RSPRELOAD_FABRIC_WORKER", getenv("FABRIC_WORKER_OF_SERVER"), 1);
            execl("/proc/self/exe", "closed_recovery_test", how, nullptr);
            _exit(127);
        }
        close(in[0]);
        close(out[1]);
        to = in[1];
        from = out[0];
    }
    void end() const {
        close(to);
        close(from);
    }
    int to = -1;
    int from = -1;
    pid_t pid = -1;
};

// Connects, and exchanges bytes until both directions are on the fabric path. Negative: they are not within some time.
int upgraded_to(const Server& server) {
    uint16_t port = 0;
    EXPECT_EQ(read(server.from, &port, sizeof(port)), static_cast<ssize_t>(sizeof(port)));
    sockaddr_in address = loopback(port);
    // A number that connect(2) chooses may be that of other tests' connections in TIME_WAIT, too: then the tcp core,
    // which has the kernel's ports, cannot listen there for a minute.
    sockaddr_in own = loopback(0);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&own), sizeof(own)), 0);
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    constexpr int both_ways = 3;
    constexpr int most = 15000; // of a millisecond each
    for (int i = 0; i < most; ++i) {
        if (preload_test::path_of(fd) == both_ways) {
            return fd;
        }
        preload_test::send_all(fd, "greeting: ");
        EXPECT_EQ(preload_test::receive(fd, greeting, MSG_WAITALL).size(), greeting);
        usleep(1000);
    }
    close(fd);
    return -1;
}

// The worker that this process's library has started last.
pid_t own_worker() {
    const std::unique_ptr<FILE, int (*)(FILE*)> file(fopen(getenv("FABRIC_WORKERS"), "r"), fclose);
    int pid = 0;
    EXPECT(file != nullptr);
    while (fscanf(file.get(), "%d", &pid) == 1) {
    }
    EXPECT(pid > 1);
    return pid;
}

// pause: chooses whether the server's process or its worker has the connection by then. Both must do.
void expect_all_of_it(const char* how, useconds_t pause = 0) {
    std::optional<Server> server;
    int fd = -1;
    // A busy machine may start one end's worker too late.
    for (int connections = 0; fd < 0 && connections < 5; ++connections) {
        if (server) {
            EXPECT_EQ(kill(server->pid, SIGKILL), 0);
            EXPECT_EQ(waitpid(server->pid, nullptr, 0), server->pid);
            server->end();
        }
        server.emplace(how);
        fd = upgraded_to(*server);
    }
    EXPECT(fd >= 0);
    preload_test::send_all(fd, "last one: ");
    EXPECT_EQ(preload_test::receive(fd, greeting, MSG_WAITALL).size(), greeting);

    const pid_t worker = own_worker();
    EXPECT_EQ(kill(worker, SIGSTOP), 0);
    EXPECT_EQ(write(server->to, "s", 1), 1);
    char byte = 0;
    EXPECT(read(server->from, &byte, 1) >= 0); // it has closed, or has ended
    usleep(pause);
    EXPECT_EQ(kill(worker, SIGKILL), 0);

    size_t have = 0;
    for (;;) {
        std::array<uint8_t, 16384> bytes{};
        const ssize_t n = recv(fd, bytes.data(), bytes.size(), 0);
        EXPECT(n >= 0);
        for (ssize_t i = 0; i < n; ++i) {
            EXPECT_EQ(bytes[static_cast<size_t>(i)], pattern(have++));
        }
        if (n == 0) {
            break;
        }
    }
    EXPECT_EQ(have, rest);
    close(fd);
    server->end();
    int status = 0;
    EXPECT_EQ(waitpid(server->pid, &status, 0), server->pid);
    EXPECT_EQ(status, 0);
}

void test_all_arrives_though_the_fabric_fails_behind_a_close() { expect_all_of_it("closes"); }
void test_all_arrives_though_the_fabric_fails_some_time_behind_a_close() { expect_all_of_it("closes", 300000); }
void test_all_arrives_though_the_fabric_fails_behind_an_exit() { expect_all_of_it("exits"); }

// However many calls it has made by then.
void test_a_connection_is_on_the_fabric_again_soon_after_it_has_failed() {
    constexpr int exchanges = 20000;
    constexpr int most = 20000; // of a millisecond each
    int fd = -1;
    std::optional<Server> server;
    for (int connections = 0; fd < 0 && connections < 5; ++connections) {
        server.emplace("closes");
        fd = upgraded_to(*server);
    }
    EXPECT(fd >= 0);
    const auto exchange = [&] {
        preload_test::send_all(fd, "greeting: ");
        EXPECT_EQ(preload_test::receive(fd, greeting, MSG_WAITALL).size(), greeting);
    };
    for (int i = 0; i < exchanges; ++i) {
        exchange();
    }
    EXPECT_EQ(kill(own_worker(), SIGKILL), 0);
    bool was_away = false;
    int left = most;
    for (; left > 0 && !(was_away && preload_test::path_of(fd) == 3); --left) {
        exchange();
        was_away = was_away || preload_test::path_of(fd) == 0;
        usleep(1000);
    }
    EXPECT(was_away);
    EXPECT(left > 0);
    EXPECT_EQ(kill(server->pid, SIGKILL), 0);
    EXPECT_EQ(waitpid(server->pid, nullptr, 0), server->pid);
    server->end();
    close(fd);
}

// The child has all descriptors of this process, the one to its worker too.
void test_a_worker_that_ends_beside_a_child_is_followed_by_another() {
    int fd = -1;
    for (int connections = 0; fd < 0 && connections < 5; ++connections) {
        const Server server("closes");
        fd = upgraded_to(server);
        EXPECT_EQ(kill(server.pid, SIGKILL), 0);
        EXPECT_EQ(waitpid(server.pid, nullptr, 0), server.pid);
        server.end();
    }
    EXPECT(fd >= 0);
    close(fd);
    static pid_t worker = 0;
    worker = own_worker();
    const pid_t child = vfork(); // NOLINT(clang-analyzer-security.insecureAPI.vfork): what programs do
    if (child == 0) {
        kill(worker, SIGKILL);
        poll(nullptr, 0, 300); // this process is suspended, but for the library's thread, which hears of it
        _exit(0);
    }
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
    expect_all_of_it("closes");
}

} // namespace

int main(int argc, char** argv) {
    signal(SIGPIPE, SIG_IGN);
    if (argc == 2 && (strcmp(argv[1], "closes") == 0 || strcmp(argv[1], "exits") == 0)) {
        return serve(argv[1][0] == 'e');
    }
    const CMUnitTest tests[] = {
        FABTEST(test_all_arrives_though_the_fabric_fails_behind_a_close),
        FABTEST(test_all_arrives_though_the_fabric_fails_some_time_behind_a_close),
        FABTEST(test_all_arrives_though_the_fabric_fails_behind_an_exit),
        FABTEST(test_a_connection_is_on_the_fabric_again_soon_after_it_has_failed),
        FABTEST(test_a_worker_that_ends_beside_a_child_is_followed_by_another),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
