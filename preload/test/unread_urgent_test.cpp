// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A peer's urgent byte that the program does not read, on a connection of the fabric path: it stays readable for ever,
// and nobody is busy with it. unread_urgent_test.sh runs it.
#include <cctype>
#include <cstdlib>
#include <string>

#include <dirent.h>
#include <unistd.h>

#include "preload/test/pair.hpp"
#include "rsockets/test/asleep.hpp"

namespace {

using preload_test::events_of;
using preload_test::path_of;

// Both ends are in this process.
struct Pair : preload_test::Connected {
    Pair()
        : Connected([](int, int a) {
              sockaddr_in own{}; // a free port, for the tcp core, which has the kernel's
              own.sin_family = AF_INET;
              EXPECT_EQ(bind(a, reinterpret_cast<sockaddr*>(&own), sizeof(own)), 0);
          }) {
        constexpr int both_ways = 3;
        for (int left = 60000; left > 0 && (path_of(a) != both_ways || path_of(b) != both_ways); --left) {
            for (const auto& [from, to] : {std::pair{a, b}, std::pair{b, a}}) {
                preload_test::send_all(from, "x");
                EXPECT_EQ(preload_test::receive(to, 1, MSG_WAITALL), std::string("x"));
            }
            usleep(1000); // a worker loads libfabric meanwhile
        }
        EXPECT_EQ(path_of(a), both_ways);
        EXPECT_EQ(path_of(b), both_ways);
    }
};

void await_other_threads_asleep() {
    DIR* const folder = opendir("/proc/self/task");
    EXPECT(folder != nullptr);
    int others = 0;
    while (const dirent* entry = readdir(folder)) {
        if (isdigit(static_cast<unsigned char>(*entry->d_name)) != 0 && atol(entry->d_name) != getpid()) {
            await_thread_asleep(atol(entry->d_name));
            ++others;
        }
    }
    closedir(folder);
    EXPECT(others != 0);
}

void test_an_urgent_byte_that_nobody_reads_keeps_nobody_busy() {
    const Pair pair;
    EXPECT_EQ(send(pair.a, "!", 1, MSG_OOB), 1);
    EXPECT_EQ(events_of(pair.b, POLLPRI), POLLPRI);
    await_other_threads_asleep();
    preload_test::send_all(pair.a, "behind it");
    EXPECT_EQ(preload_test::receive(pair.b, 9, MSG_WAITALL), std::string("behind it"));
    await_other_threads_asleep();
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_an_urgent_byte_that_nobody_reads_keeps_nobody_busy),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
