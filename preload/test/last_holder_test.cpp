// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The last process that has a connection on the fabric path is a child, which ends or executes another program: its
// peer gets the end of the stream, or all that the child sends if it goes on. last_holder_test.sh runs it.
#include <algorithm>
#include <array>
#include <csignal>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "preload/test/child.hpp"
#include "preload/test/fabric_pair.hpp"

namespace {

using preload_test::await_end;
using preload_test::FabricPair;
using preload_test::on_fabric;

// What the peer gets until the end of the stream.
std::string rest_of(int fd) {
    std::string all;
    for (;;) {
        const short events = preload_test::events_of(fd, POLLIN);
        EXPECT((events & POLLIN) != 0);
        const std::string part = preload_test::receive(fd, 4096);
        if (part.empty()) {
            return all;
        }
        all += part;
    }
}

// b is the child's alone.
template <class Run> void expect_from_child(const std::string& wanted, Run&& run) {
    const std::unique_ptr<FabricPair> pair = on_fabric();
    const pid_t child = fork();
    if (child == 0) {
        close(std::exchange(pair->a, -1));
        _exit(run(pair->b));
    }
    close(std::exchange(pair->b, -1));
    EXPECT_EQ(send(pair->a, "go", 2, 0), 2);
    EXPECT_EQ(rest_of(pair->a), wanted);
    await_end(child);
}

bool is_told(int fd) {
    std::string text(2, '\0');
    return recv(fd, text.data(), text.size(), MSG_WAITALL) == 2 && text == "go";
}

void test_a_child_that_ends_closes() {
    expect_from_child("last bytes", [](int fd) { return is_told(fd) && send(fd, "last bytes", 10, 0) == 10 ? 0 : 1; });
}

void test_a_child_that_executes_another_program_closes() {
    expect_from_child("", [](int fd) {
        if (is_told(fd)) {
            execl("/bin/true", "true", nullptr);
        }
        return 1;
    });
}

void test_a_child_that_cannot_execute_goes_on() {
    expect_from_child("goes on", [](int fd) {
        if (!is_told(fd) || execl("/no/such/program", "none", nullptr) != -1) {
            return 1;
        }
        usleep(20000); // for whoever takes that for the end
        return send(fd, "goes on", 7, 0) == 7 ? 0 : 2;
    });
}

// A look at the descriptors of all processes takes long, and must be rare: the end of a child does not wait for one.
void test_the_end_of_a_child_does_not_wait_for_a_look_at_all_processes() {
    constexpr size_t processes = 16;
    constexpr rlim_t each = 20000;
    std::vector<pid_t> children;
    std::array<int, 2> ready{};
    EXPECT_EQ(pipe2(ready.data(), O_CLOEXEC), 0);
    for (size_t i = 0; i < processes; ++i) {
        const pid_t child = fork();
        if (child == 0) {
            rlimit limit{};
            getrlimit(RLIMIT_NOFILE, &limit);
            limit.rlim_cur = std::min(limit.rlim_max, each);
            setrlimit(RLIMIT_NOFILE, &limit);
            const int one = open("/dev/null", O_RDONLY | O_CLOEXEC);
            while (dup(one) >= 0) {
            }
            (void)!write(ready[1], "r", 1);
            for (;;) {
                pause();
            }
        }
        children.push_back(child);
        char byte = 0;
        EXPECT_EQ(read(ready[0], &byte, 1), 1);
    }
    close(ready[0]);
    close(ready[1]);
    try {
        for (int i = 0; i < 3; ++i) {
            test_a_child_that_ends_closes();
        }
    } catch (...) {
        for (const pid_t child : children) {
            kill(child, SIGKILL);
        }
        throw;
    }
    for (const pid_t child : children) {
        EXPECT_EQ(kill(child, SIGKILL), 0);
        EXPECT_EQ(waitpid(child, nullptr, 0), child);
    }
}

} // namespace

int main() {
    signal(SIGPIPE, SIG_IGN);
    const CMUnitTest tests[] = {
        FABTEST(test_a_child_that_ends_closes),
        FABTEST(test_a_child_that_executes_another_program_closes),
        FABTEST(test_a_child_that_cannot_execute_goes_on),
        FABTEST(test_the_end_of_a_child_does_not_wait_for_a_look_at_all_processes),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
