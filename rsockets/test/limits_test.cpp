// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What a user is told where a limit is too low: RS_LOG=warn names the limit and what raises it. Each case is a process
// of its own, whose standard error is read.
#include <array>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rsockets/test/fabric_hook.hpp"
#include "rsockets/test/sockets.hpp"

namespace {

using namespace fabtests;
using namespace rsocket_test;

// What a child of this process writes to its standard error while it runs a body, which must end well.
std::string told(const std::function<void()>& body) {
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe(ends.data()), 0);
    const pid_t child = fork(); // which has not used the library yet
    EXPECT(child >= 0);
    if (child == 0) {
        alarm(static_cast<unsigned>(patience(60000) / 1000));
        (void)setenv("RS_LOG", "warn", 1); // NOLINT(concurrency-mt-unsafe): there is no other thread
        (void)dup2(ends[1], STDERR_FILENO);
        try {
            body();
        } catch (const std::exception&) {
            _exit(1);
        }
        _exit(0);
    }
    close(ends[1]);
    std::string text;
    std::array<char, 1000> part{};
    for (ssize_t n = 0; (n = read(ends[0], part.data(), part.size())) > 0;) {
        text.append(part.data(), static_cast<size_t>(n));
    }
    close(ends[0]);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    return text;
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void call_in_thread(size_t stack) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    EXPECT_EQ(pthread_attr_setstacksize(&attributes, stack), 0);
    pthread_t thread{};
    const auto call = [](void*) -> void* {
        (void)rclose(-1); // which takes next to none
        return nullptr;
    };
    EXPECT_EQ(pthread_create(&thread, &attributes, call, nullptr), 0);
    EXPECT_EQ(pthread_join(thread, nullptr), 0);
}

void test_a_thread_with_too_little_stack_is_named() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    throw Skip("a sanitizer's threads need more");
#endif
    EXPECT(says(told([] { call_in_thread(PTHREAD_STACK_MIN); }), "pthread_attr_setstacksize"));
    EXPECT_EQ(told([] { call_in_thread(65536); }), "");
}

void test_a_connection_without_memory_names_the_limit() {
    const std::string text = told([] {
        fabric_hook.no_domains.store(true); // memory cannot be pinned
        const Number fd(rsocket(AF_INET, SOCK_STREAM, 0));
        const sockaddr_in to = loopback(1);
        EXPECT_EQ(rconnect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), -1);
        EXPECT_EQ(errno, ENOMEM);
    });
    EXPECT(says(text, "ulimit -l"));
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_a_thread_with_too_little_stack_is_named),
        FABTEST(test_a_connection_without_memory_names_the_limit),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
