// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Many connections for some time: random sizes and pauses, half closes, resets, and processes that are killed in the
// middle. Every byte is checked at both ends, and at the end no descriptor and no memory is left.
//
//     RSOCKET_SOAK_SECONDS=300 RSOCKET_SOAK_CYCLES=200000 rsockets/test/soak_test
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <malloc.h>
#include <unistd.h>

#include "fabtests/common/child.hpp"
#include "rsockets/test/soak_client.hpp"
#include "rsockets/test/soak_server.hpp"
#include "rsockets/test/sockets.hpp"

namespace {

using namespace fabtests;
using namespace rsocket_test;
using namespace soak;

int setting(const char* name, int otherwise) {
    const char* text = getenv(name);
    return text != nullptr && atoi(text) > 0 ? atoi(text) : otherwise;
}

// Runs all for a time; one process after another is killed and started anew.
void run_for(Server& server, uint32_t& process, int milliseconds) {
    const auto start = Clock::now();
    const auto left = [&] { return milliseconds - milliseconds_since(start); };
    const auto begin = [&](int time) {
        ++process;
        return std::make_unique<Child>(
            "connects",
            std::vector<std::string>{std::to_string(server.port()), std::to_string(process), std::to_string(time)});
    };
    std::vector<std::unique_ptr<Child>> children;
    std::vector<uint32_t> numbers;
    for (size_t i = 0; i < processes; ++i) {
        children.push_back(begin(std::max(1, left())));
        numbers.push_back(process);
    }
    const int pause = std::max(milliseconds / 8, 300);
    bool any = false;
    for (size_t victim = 0; !any || left() > 2 * pause; victim = (victim + 1) % processes) {
        usleep(static_cast<useconds_t>(1000 * pause));
        server.await(numbers[victim]);
        any = true;
        server.will_be_killed(numbers[victim]);
        children[victim]->kill();
        children[victim] = begin(std::max(1, left()));
        numbers[victim] = process;
    }
    try {
        for (const auto& child : children) {
            EXPECT_EQ(child->hear(milliseconds + 60000), "done");
            child->finish();
        }
    } catch (...) { // whatever it was: the reason may be in what another of them says
        for (const auto& child : children) {
            try {
                printf("# a process that connects: %s\n", child->hear(100).c_str());
            } catch (const std::exception& error) {
                printf("# a process that connects: %s\n", error.what());
            }
        }
        throw;
    }
    const auto end = Clock::now();
    while (server.open() != 0) {
        EXPECT(milliseconds_since(end) < patience(20000));
        usleep(10000);
    }
}

// What the library keeps for a moment behind the program is gone, or the time is over.
size_t settled_fds(size_t wanted) {
    const auto start = Clock::now();
    while (open_fds() > wanted && milliseconds_since(start) < patience(10000)) {
        usleep(10000);
    }
    return open_fds();
}

// What rounds of the same kind leave in memory. Pools and the heap grow with the most that was ever alive at once; what
// is lost with each connection grows in every round.
class Growth {
  public:
    void round_ends() {
        malloc_trim(0);
        const size_t now = resident_bytes();
        if (last_ != 0) {
            least_ = std::min(least_, now - std::min(now, last_));
        }
        last_ = now;
    }
    void expect_none() const {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) // which keep what was freed
        if (least_ > size_t{1} << 20) {
            throw Failure("memory grows by " + std::to_string(least_ >> 10) + " KiB in every round");
        }
#endif
    }

  private:
    size_t last_ = 0;
    size_t least_ = SIZE_MAX;
};
#ifdef __SANITIZE_THREAD__
constexpr int rounds = 2; // a process takes a while to be killed in the middle of something
#else
constexpr int rounds = 5;
#endif

void test_many_connections_for_some_time() {
#ifdef __SANITIZE_THREAD__
    const int seconds = setting("RSOCKET_SOAK_SECONDS", 6);
#else
    const int seconds = setting("RSOCKET_SOAK_SECONDS", 8);
#endif
    alarm(static_cast<unsigned>(seconds + patience(120000) / 1000));
    allow_descriptors();
    Server server;
    Threads threads;
    uint32_t process = 0;
    try {
        threads.start([&] { server.serve(); });
        threads.start([&] { server.serve(); });
        size_t with_one = 0;
        {
            {
                const Ends at_once[] = {connected(), connected()}; // what is kept for later is made
            }
            const Ends ends = connected();
            send_all(ends.client, "x");
            EXPECT_EQ(received(ends.server, 1), "x");
            with_one = open_fds();
        }
        Growth growth;
        for (int i = 0; i < rounds; ++i) {
            run_for(server, process, 1000 * seconds / rounds);
            EXPECT(settled_fds(with_one) <= with_one);
            growth.round_ends();
        }
        growth.expect_none();
    } catch (...) {
        server.stop();
        threads.join(); // what a thread says of it is the reason
        throw;
    }
    server.stop();
    threads.join();
    const Tally& tally = server.tally;
    printf("# %d s: %llu connections to their end, %llu reset, %llu of killed processes, %llu MB received\n", seconds,
           static_cast<unsigned long long>(tally.finished), static_cast<unsigned long long>(tally.reset),
           static_cast<unsigned long long>(tally.killed), static_cast<unsigned long long>(tally.bytes / 1000000));
    EXPECT(tally.finished >= connections);
    EXPECT(tally.reset > 0 && tally.killed > 0);
}

void test_connecting_and_closing_leaves_nothing_behind() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    const int cycles = setting("RSOCKET_SOAK_CYCLES", 200);
#else
    const int cycles = setting("RSOCKET_SOAK_CYCLES", 5000);
#endif
    alarm(static_cast<unsigned>(cycles / 20 + patience(120000) / 1000));
    const Number from = listener();
    const uint16_t port = port_of(from);
    const auto cycle = [&] {
        const Number client = connected_to(port);
        const Number server(raccept(from, nullptr, nullptr));
        send_all(client, "x");
        EXPECT_EQ(received(server, 1), "x");
    };
    for (int i = 0; i < 100; ++i) {
        cycle();
    }
    size_t with_one = 0;
    {
        const Number client = connected_to(port);
        const Number server(raccept(from, nullptr, nullptr));
        with_one = open_fds();
    }
    Growth growth;
    for (int round = 0; round < rounds; ++round) {
        for (int i = 0; i < cycles / rounds; ++i) {
            cycle();
        }
        EXPECT(settled_fds(with_one) <= with_one);
        growth.round_ends();
    }
    growth.expect_none();
}

} // namespace

int main(int argc, char** argv) {
    signal(SIGPIPE, SIG_IGN);
    // On a machine that is slow, a connection is not refused because its handshake was.
    setenv("FI_RSTREAM_HANDSHAKE_TIMEOUT", std::to_string(patience(15000)).c_str(), 0);
    const Role roles[] = {{"connects", role_connects}};
    if (const auto status = play_role(argc, argv, roles)) {
        return *status;
    }
    const CMUnitTest tests[] = {
        FABTEST(test_many_connections_for_some_time),
        FABTEST(test_connecting_and_closing_leaves_nothing_behind),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
