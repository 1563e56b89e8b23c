// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What a process has sent arrives although it ends: until the peer has acknowledged everything, the end of the stream
// included, the core's connection stays. A core whose socket takes all at once is no proof of arrival, and one that
// meets a closed socket may drop what it has not read. The receiver is stopped (SIGSTOP) while the sender ends, so that
// nothing is acknowledged before it is continued.
#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rsockets/test/sockets.hpp"

namespace {

using namespace fabtests;
using namespace rsocket_test;

constexpr size_t some = 1000;  // bytes, fewer than any buffer has space for
constexpr int too_early = 300; // milliseconds in which an end that waits for nothing would have come

struct Pipe {
    Pipe() { EXPECT_EQ(pipe(ends), 0); }
    Pipe(const Pipe&) = delete;
    Pipe& operator=(const Pipe&) = delete;
    ~Pipe() {
        close_end(0);
        close_end(1);
    }
    void close_end(int end) {
        if (ends[end] >= 0) {
            close(std::exchange(ends[end], -1));
        }
    }
    template <class T> void put(const T& value) const {
        EXPECT_EQ(write(ends[1], &value, sizeof(value)), sizeof(value));
    }
    template <class T> [[nodiscard]] T get() const {
        T value{};
        EXPECT_EQ(read(ends[0], &value, sizeof(value)), sizeof(value));
        return value;
    }
    // Something was written, or all writers are gone.
    [[nodiscard]] bool readable(int milliseconds) const {
        pollfd fd{ends[0], POLLIN, 0};
        return poll(&fd, 1, milliseconds) != 0;
    }

    int ends[2];
};

// A process of its own; the library is used in children only, so each has one of its own. Its status is what `body`
// returns, and it ends by exit(3).
pid_t child(const std::function<int()>& body) {
    const pid_t pid = fork();
    EXPECT(pid >= 0);
    if (pid == 0) {
        alarm(static_cast<unsigned>(patience(60000) / 1000));
        int status = 99;
        try {
            status = body();
        } catch (const std::exception&) {
        }
        exit(status); // NOLINT(concurrency-mt-unsafe): that is what is tested
    }
    return pid;
}

int status_of(pid_t pid) {
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    return status;
}

// Accepts two connections, reads the end of the second, stops itself, and expects `some` bytes and the end from the
// first once it is continued.
int receive(const Pipe& port) {
    const Number from = listener();
    port.put(port_of(from));
    const Number one(raccept(from, nullptr, nullptr));
    const Number other(raccept(from, nullptr, nullptr));
    char byte = 0;
    EXPECT_EQ(rrecv(other, &byte, 1, 0), 0);
    raise(SIGSTOP);
    return received(one, some).size() == some && rrecv(one, &byte, 1, 0) == 0 ? 0 : 1;
}

// Runs `ending` with a socket that has sent to a receiver which is stopped. It has `done` to tell that a call has
// returned. Neither that nor the end of the process is to come before the receiver is continued. Another socket, of
// which nothing is left to be acknowledged, stays open.
void expect_to_wait(const std::function<void(Number&, const Pipe& done)>& ending) {
    const Pipe port;
    const Pipe stopped;
    Pipe done;
    const pid_t receiver = child([&] {
        done.close_end(0);
        done.close_end(1);
        return receive(port);
    });
    const pid_t sender = child([&] {
        done.close_end(0);
        const auto to = port.get<uint16_t>();
        static Number* one = nullptr; // never destroyed: they are open when the process ends
        static Number* other = nullptr;
        one = new Number(connected_to(to));   // NOLINT(cppcoreguidelines-owning-memory)
        other = new Number(connected_to(to)); // NOLINT(cppcoreguidelines-owning-memory)
        EXPECT_EQ(rshutdown(*other, SHUT_WR), 0);
        (void)stopped.get<char>();
        send_all(*one, std::string(some, 'x'));
        ending(*one, done);
        return 0;
    });
    done.close_end(1);
    int status = 0;
    EXPECT_EQ(waitpid(receiver, &status, WUNTRACED), receiver);
    EXPECT(WIFSTOPPED(status));
    stopped.put('x');
    const bool early = done.readable(too_early);
    EXPECT_EQ(kill(receiver, SIGCONT), 0);
    EXPECT_EQ(status_of(receiver), 0);
    EXPECT_EQ(status_of(sender), 0);
    EXPECT(!early);
}

void test_an_exit_waits_for_the_peers_acknowledgement() {
    expect_to_wait([](Number&, const Pipe&) {});
}

void test_an_exit_behind_a_shutdown_does_so_too() {
    expect_to_wait([](Number& one, const Pipe&) { EXPECT_EQ(rshutdown(one, SHUT_WR), 0); });
}

// What is left of a closed socket belongs to the domain, which cannot be closed while other sockets are open.
void test_an_exit_waits_for_sockets_that_were_closed_before() {
    expect_to_wait([](Number& one, const Pipe&) { one.close(); });
}

void test_a_close_with_so_linger_returns_once_the_peer_has_acknowledged() {
    expect_to_wait([](Number& one, const Pipe& done) {
        const linger wait{1, 30};
        EXPECT_EQ(rsetsockopt(one, SOL_SOCKET, SO_LINGER, &wait, sizeof(wait)), 0);
        one.close();
        done.put('x');
    });
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_an_exit_waits_for_the_peers_acknowledgement),
        FABTEST(test_an_exit_behind_a_shutdown_does_so_too),
        FABTEST(test_an_exit_waits_for_sockets_that_were_closed_before),
        FABTEST(test_a_close_with_so_linger_returns_once_the_peer_has_acknowledged),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
