// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Who wakes up for the steps of a blocking connect: the thread that waits for it, and not the library's thread; but not
// for the data of other connections.
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

#include <sys/socket.h>
#include <unistd.h>

#include "base/descriptor.hpp"
#include "fabtests/common/child.hpp"
#include "rsockets/test/asleep.hpp"
#include "rsockets/test/sockets.hpp"

namespace {

using namespace fabtests;
using namespace rsocket_test;

// How often a thread of this process went to sleep.
int sleeps_of(long id) {
    std::ifstream status("/proc/self/task/" + std::to_string(id) + "/status");
    const std::string wanted = "voluntary_ctxt_switches:";
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with(wanted)) {
            return std::stoi(line.substr(wanted.size()));
        }
    }
    throw Failure("nothing tells how often thread " + std::to_string(id) + " has slept");
}

long library_thread() {
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
        std::ifstream file(task.path() / "comm");
        std::string name;
        if (std::getline(file, name) && name == "rsocket") {
            return std::stol(task.path().filename());
        }
    }
    throw Failure("the library has no thread");
}

void role_accepts(const std::vector<std::string>& /*arguments*/) {
    const Number from = listener();
    say(std::to_string(port_of(from)));
    for (;;) {
        const Number accepted(raccept(from, nullptr, nullptr));
    }
}

// It wakes up by the clock as well, every ten milliseconds.
void test_the_librarys_thread_sleeps_through_blocking_connects() {
    constexpr int connects = 200;
    Child server("accepts");
    const auto port = static_cast<uint16_t>(std::stoi(server.hear()));
    (void)connected_to(port); // it exists from now on
    const long thread = library_thread();
    const int before = sleeps_of(thread);
    const auto start = Clock::now();
    for (int i = 0; i < connects; ++i) {
        (void)connected_to(port);
    }
    const int slept = sleeps_of(thread) - before;
    const int by_the_clock = milliseconds_since(start) / 10;
    if (slept > by_the_clock + connects / 2) {
        throw Failure("it has woken up " + std::to_string(slept) + " times, " + std::to_string(by_the_clock) +
                      " of them by the clock");
    }
}

void test_a_connect_without_an_answer_sleeps_while_data_flows() {
    if (core_name() != "tcp") {
        throw Skip("a listener of the kernel answers nothing only to the tcp core");
    }
    constexpr int messages = 3000;
    const Ends ends = connected();
    const base::Descriptor silent(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = loopback(0);
    socklen_t length = sizeof(address);
    EXPECT_EQ(::bind(silent.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
    EXPECT_EQ(::listen(silent.get(), 1), 0);
    EXPECT_EQ(::getsockname(silent.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);

    const Number waiting(rsocket(AF_INET, SOCK_STREAM, 0));
    std::atomic<int> error{0};
    Threads threads;
    const long thread = start_asleep(threads, [&] {
        const int ret = rconnect(waiting, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
        error.store(ret == 0 ? 0 : errno);
    });
    const int before = sleeps_of(thread);
    for (int i = 0; i < messages; ++i) {
        send_all(ends.client, "ping");
        EXPECT_EQ(received(ends.server, 4), "ping");
    }
    const int slept = sleeps_of(thread) - before;
    EXPECT_EQ(rshutdown(waiting, SHUT_RDWR), 0);
    threads.join();
    EXPECT(error.load() != 0); // it was cancelled
    if (slept > messages / 30) {
        throw Failure("it has woken up " + std::to_string(slept) + " times");
    }
}

} // namespace

int main(int argc, char** argv) {
    const Role roles[] = {{"accepts", role_accepts}};
    if (const auto status = play_role(argc, argv, roles)) {
        return *status;
    }
    setenv("FI_RSTREAM_HANDSHAKE_TIMEOUT", std::to_string(patience(15000)).c_str(), 0);
    const CMUnitTest tests[] = {
        FABTEST(test_the_librarys_thread_sleeps_through_blocking_connects),
        FABTEST(test_a_connect_without_an_answer_sleeps_while_data_flows),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
