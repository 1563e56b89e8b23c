// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A process that ends by exit(3) while other threads use sockets: it ends with its own status, whatever they do, and
// destructors of static objects may still end sockets and join threads that wait on them.
//
//     RSOCKET_EXIT_ROUNDS=1000 rsockets/test/exit_test
#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rsockets/test/sockets.hpp"

namespace {

using namespace fabtests;
using namespace rsocket_test;

constexpr int status_of_child = 42;
constexpr size_t map_size = 4096;

int rounds() {
    const char* text = getenv("RSOCKET_EXIT_ROUNDS");
    return text != nullptr && atoi(text) > 0 ? atoi(text) : 25;
}

// What the threads of the process that ends work on: never destroyed, as in a program whose threads still run.
struct Work {
    Number from = listener();
    uint16_t port = port_of(from);
    std::array<Ends, 3> ends{connected_with_maps(), connected_with_maps(), connected_with_maps()};
    std::array<char, map_size> memory{};
    int64_t map = riomap(ends[2].server, memory.data(), memory.size(), PROT_WRITE, 0, -1);
    std::atomic<int> begun{0};

  private:
    static Number with_maps(Number fd) {
        const int count = 4;
        EXPECT_EQ(rsetsockopt(fd, SOL_RDMA, RDMA_IOMAPSIZE, &count, sizeof(count)), 0);
        return fd;
    }
    Ends connected_with_maps() const {
        Number client = with_maps(Number(rsocket(AF_INET, SOCK_STREAM, 0)));
        const sockaddr_in to = loopback(port);
        EXPECT_EQ(rconnect(client, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
        return {std::move(client), Number(raccept(from, nullptr, nullptr))};
    }
};

// Calls until one fails for good. What a call gives once the process ends is not looked at.
template <class Body> void start(Work& work, Body&& body) {
    std::thread([&work, body] {
        ++work.begun;
        while (body(work)) {
        }
    }).detach();
}

int start_all(Work& work) {
    start(work, [](Work& w) {
        const int fd = rsocket(AF_INET, SOCK_STREAM, 0);
        const sockaddr_in to = loopback(w.port);
        const int ret = fd < 0 ? -1 : rconnect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to));
        return rclose(fd) == 0 && ret == 0;
    });
    start(work, [](Work& w) {
        const int fd = raccept(w.from, nullptr, nullptr);
        return fd >= 0 && rclose(fd) == 0;
    });
    start(work, [](Work& w) {
        std::array<char, 1000> bytes{};
        return rsend(w.ends[0].client, bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0;
    });
    start(work, [](Work& w) {
        std::array<char, 3000> bytes{};
        return rrecv(w.ends[0].server, bytes.data(), bytes.size(), 0) > 0;
    });
    start(work, [](Work& w) { // that sleeps
        char byte = 0;
        return rrecv(w.ends[1].server, &byte, 1, 0) > 0;
    });
    start(work, [](Work& w) {
        std::array<pollfd, 2> fds{pollfd{w.ends[0].server, POLLIN, 0}, pollfd{w.ends[1].client, POLLIN, 0}};
        return rpoll(fds.data(), fds.size(), -1) >= 0;
    });
    const int set = repoll_create(0);
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | EPOLLET;
    EXPECT_EQ(repoll_ctl(set, EPOLL_CTL_ADD, work.ends[0].client, &event), 0);
    EXPECT_EQ(repoll_ctl(set, EPOLL_CTL_ADD, work.ends[0].server, &event), 0);
    start(work, [set](Work&) {
        epoll_event told{};
        return repoll_wait(set, &told, 1, -1) >= 0;
    });
    start(work, [](Work& w) {
        const std::array<char, 1500> bytes{};
        return riowrite(w.ends[2].client, bytes.data(), bytes.size(), w.map, 0) > 0;
    });
    return 8;
}

// The status with which a child of this process ends.
template <class Body> int status_of(Body&& body) {
    const pid_t child = fork(); // which has not used the library yet
    EXPECT(child >= 0);
    if (child == 0) {
        alarm(static_cast<unsigned>(patience(60000) / 1000));
        for (const int fault : {SIGSEGV, SIGBUS, SIGILL, SIGFPE}) { // which cmocka handles
            (void)signal(fault, SIG_DFL);
        }
        try {
            body();
        } catch (const std::exception&) {
            _exit(1);
        }
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return status;
}

void expect_ended(int status) {
    EXPECT_EQ(WIFSIGNALED(status) ? WTERMSIG(status) : 0, 0);
    EXPECT_EQ(WEXITSTATUS(status), status_of_child);
}

void test_a_process_ends_while_threads_use_sockets() {
    int failures = 0;
    for (int i = 0; i < rounds(); ++i) {
        const int status = status_of([i] {
            auto* work = new Work; // NOLINT(cppcoreguidelines-owning-memory): threads use it to the end
            const int threads = start_all(*work);
            while (work->begun.load() != threads) {
                std::this_thread::yield();
            }
            usleep(static_cast<useconds_t>(i * 977 % 20000)); // another moment each time
            exit(status_of_child);                            // NOLINT(concurrency-mt-unsafe): that is what is tested
        });
        failures += WIFEXITED(status) && WEXITSTATUS(status) == status_of_child ? 0 : 1;
    }
    EXPECT_EQ(failures, 0);
}

// As a program has it whose static objects own its threads.
struct Server {
    Ends ends = connected();
    std::thread thread{[this] {
        char byte = 0;
        (void)rrecv(ends.server, &byte, 1, 0);
    }};
    ~Server() {
        (void)rshutdown(ends.server, SHUT_RDWR);
        thread.join();
    }
};
std::unique_ptr<Server> server; // destroyed at exit

void test_a_static_object_joins_its_thread_at_exit() {
    expect_ended(status_of([] {
        server = std::make_unique<Server>();
        exit(status_of_child); // NOLINT(concurrency-mt-unsafe): that is what is tested
    }));
}

// What a thread has sent by then is delivered.
void test_what_was_sent_arrives_although_threads_wait() {
    int pipe_ends[2];
    EXPECT_EQ(pipe(pipe_ends), 0);
    const pid_t child = fork(); // which receives: no thread of it waits for what ends here
    EXPECT(child >= 0);
    if (child == 0) {
        alarm(static_cast<unsigned>(patience(60000) / 1000));
        try {
            const Number from = listener();
            const uint16_t port = port_of(from);
            EXPECT_EQ(write(pipe_ends[1], &port, sizeof(port)), sizeof(port));
            const Number one(raccept(from, nullptr, nullptr));
            _exit(received(one, 300000).size() == 300000 ? 0 : 2);
        } catch (const std::exception&) {
            _exit(1);
        }
    }
    uint16_t port = 0;
    EXPECT_EQ(read(pipe_ends[0], &port, sizeof(port)), sizeof(port));
    expect_ended(status_of([port] {
        auto* fd = new Number(connected_to(port)); // NOLINT(cppcoreguidelines-owning-memory): used to the end
        std::thread([fd] {
            char byte = 0;
            (void)rrecv(*fd, &byte, 1, 0);
        }).detach();
        send_all(*fd, std::string(300000, 'x'));
        exit(status_of_child); // NOLINT(concurrency-mt-unsafe): that is what is tested
    }));
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
}

// A process that stops once it has received a byte on each of two connections.
struct StoppedPeer {
    StoppedPeer() {
        EXPECT_EQ(pipe(ends), 0);
        pid = fork(); // which has not used the library yet
        EXPECT(pid >= 0);
        if (pid == 0) {
            alarm(static_cast<unsigned>(patience(60000) / 1000));
            try {
                const Number from = listener();
                const uint16_t own = port_of(from);
                EXPECT_EQ(write(ends[1], &own, sizeof(own)), sizeof(own));
                const Number first(raccept(from, nullptr, nullptr));
                const Number second(raccept(from, nullptr, nullptr));
                EXPECT_EQ(received(first, 1) + received(second, 1), "xx");
                (void)raise(SIGSTOP);
            } catch (const std::exception&) {
            }
            _exit(1);
        }
        EXPECT_EQ(read(ends[0], &port, sizeof(port)), sizeof(port));
    }
    ~StoppedPeer() {
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, nullptr, 0);
        close(ends[0]);
        close(ends[1]);
    }
    StoppedPeer(const StoppedPeer&) = delete;
    StoppedPeer& operator=(const StoppedPeer&) = delete;

    // For a child of the same parent: the kernel says that it is stopped.
    void await_stop() const {
        const std::string path = "/proc/" + std::to_string(pid) + "/stat";
        for (std::string text; text.find(") T ") == std::string::npos; usleep(1000)) { // nothing tells of it
            std::ifstream file(path);
            EXPECT(std::getline(file, text).good());
        }
    }

    pid_t pid = -1;
    uint16_t port = 0;
    int ends[2]{};
};

// What an open socket and a closed one have sent is waited for together: the pages promise three seconds in all.
void test_an_exit_waits_three_seconds_in_all_for_a_peer_that_is_stopped() {
    const StoppedPeer peer;
    int pipe_ends[2];
    EXPECT_EQ(pipe(pipe_ends), 0);
    const int status = status_of([&] {
        auto* open = new Number(connected_to(peer.port)); // NOLINT(cppcoreguidelines-owning-memory): used to the end
        Number closed = connected_to(peer.port);
        send_all(*open, "x");
        send_all(closed, "x");
        peer.await_stop();
        send_all(*open, std::string(1000, 'x'));
        send_all(closed, std::string(1000, 'x'));
        closed.close();
        const auto now = Clock::now(); // the same clock in all processes
        EXPECT_EQ(write(pipe_ends[1], &now, sizeof(now)), sizeof(now));
        exit(status_of_child); // NOLINT(concurrency-mt-unsafe): that is what is tested
    });
    close(pipe_ends[1]);
    Clock::time_point start;
    const ssize_t got = read(pipe_ends[0], &start, sizeof(start));
    close(pipe_ends[0]);
    expect_ended(status);
    EXPECT_EQ(got, sizeof(start));
    EXPECT(milliseconds_since(start) < patience(5500));
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_a_process_ends_while_threads_use_sockets),
        FABTEST(test_a_static_object_joins_its_thread_at_exit),
        FABTEST(test_what_was_sent_arrives_although_threads_wait),
        FABTEST(test_an_exit_waits_three_seconds_in_all_for_a_peer_that_is_stopped),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
