// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A process that reads only after its peer has gone, and whose library could not do its part before: all that the peer
// sent is there, then the end. late_reader_test.sh runs it.
#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <thread>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "preload/test/pair.hpp"
#include "preload/test/wakeup_parts/peer.hpp"
#include "preload/test/wakeup_parts/sleeper.hpp"

namespace {

using wakeup_test::Do;
using wakeup_test::Peer;

enum class Reads : uint8_t { by_recv, by_splice, by_splice_late };

std::string read_all(int fd, size_t count, Reads how) {
    if (how == Reads::by_recv) {
        return preload_test::receive(fd, count, MSG_WAITALL);
    }
    std::string text;
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
    constexpr size_t few = 16384;
    EXPECT(fcntl(ends[1], F_SETPIPE_SZ, few) > 0);
    std::array<char, few> some{};
    auto move = [&, moved = size_t{0}](unsigned flags) mutable {
        const ssize_t n = splice(fd, nullptr, ends[1], nullptr, count - moved, flags);
        moved += n > 0 ? static_cast<size_t>(n) : 0;
        return n > 0 || moved == count;
    };
    while (text.size() < count) {
        EXPECT(move(0));
        for (int i = 0; i < 100 && move(SPLICE_F_NONBLOCK); ++i) { // until the pipe is full
        }
        const ssize_t got = read(ends[0], some.data(), some.size());
        EXPECT(got > 0);
        text.append(some.data(), static_cast<size_t>(got));
    }
    close(ends[0]);
    close(ends[1]);
    return text;
}

// All that the peer has sent, in order.
void expect_read(int fd, long count, Reads how) {
    const std::string text = read_all(fd, static_cast<size_t>(count), how);
    EXPECT_EQ(text.size(), static_cast<size_t>(count));
    for (long i = 0; i < count; ++i) {
        EXPECT_EQ(text[static_cast<size_t>(i)], wakeup_test::sent_byte(i));
    }
}

// This process has no connection, and so no thread of the library's: a sanitizer would not allow one in its children.
template <class Body> pid_t start(Body&& body) {
    const pid_t made = fork();
    if (made == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        try {
            body();
        } catch (const std::exception& error) {
            printf("# %s\n", error.what());
            fflush(stdout);
            _exit(1);
        }
        _exit(0);
    }
    return made;
}

void expect_success(pid_t process) {
    int status = 0;
    EXPECT_EQ(waitpid(process, &status, 0), process);
    EXPECT_EQ(status, 0);
}

// The peer's last bytes, more than fit into the window, were given to TCP while this process was stopped: behind those
// in the ring, and the end behind them. Its request to take those from the ring comes first, and nobody can be asked
// for anything any more.
void read_what_is_left(bool closes, Reads how, int when_peer_has_gone) {
    constexpr long sent = 373728; // more than a ring and the window take, less than a ring and a send buffer
    // Its number is below that of the connection: Linux ends the files of a killed process in the reverse order.
    const Peer peer;
    close(when_peer_has_gone);
    peer.tell(Do::wait); // what this process said to it later could be unread when it is killed, which resets TCP
    peer.tell(Do::send, sent);
    peer.tell(Do::shut);
    if (closes) {
        peer.tell(Do::close);
    }
    peer.tell(Do::die);
    raise(SIGSTOP);
    EXPECT_EQ(peer.answer(), 0); // it has waited
    EXPECT_EQ(peer.answer(), sent);
    EXPECT_EQ(peer.answer(), 0); // and shut down
    if (how == Reads::by_splice_late) {
        constexpr useconds_t behind_all_steps_us = 200000; // which the library's thread takes by itself
        usleep(behind_all_steps_us);
    }
    expect_read(peer.fd(), sent, how);
    EXPECT_EQ(preload_test::receive(peer.fd(), 1).size(), 0U);
}

void expect_all_read_after_the_peer_has_gone(bool closes, Reads how = Reads::by_recv) {
    std::array<int, 2> gone{};
    EXPECT_EQ(pipe2(gone.data(), O_CLOEXEC), 0);
    const pid_t reader = start([&] { read_what_is_left(closes, how, gone[1]); });
    close(gone[1]);
    int status = 0;
    EXPECT_EQ(waitpid(reader, &status, WUNTRACED), reader);
    EXPECT(WIFSTOPPED(status));
    char none = 0;
    EXPECT_EQ(read(gone[0], &none, 1), 0); // the peer held the other end
    EXPECT_EQ(kill(reader, SIGCONT), 0);
    expect_success(reader);
    close(gone[0]);
}

void test_all_is_read_late_from_a_peer_that_has_closed() { expect_all_read_after_the_peer_has_gone(true); }
void test_all_is_read_late_from_a_peer_that_was_killed() { expect_all_read_after_the_peer_has_gone(false); }

void test_all_is_spliced_late_from_a_peer_that_has_closed() {
    expect_all_read_after_the_peer_has_gone(true, Reads::by_splice);
}

void test_all_is_spliced_later_from_a_peer_that_has_closed() {
    expect_all_read_after_the_peer_has_gone(true, Reads::by_splice_late);
}

// It has asked the peer, which is stopped, for its bytes.
void test_a_splice_goes_on_if_the_peer_is_killed_in_it() {
    expect_success(start([] {
        constexpr long count = 5000;
        const Peer peer;
        EXPECT_EQ(peer.ask(Do::send, count), count);
        peer.stop();
        const std::jthread killer([&, reader = gettid()] {
            EXPECT(wakeup_test::eventually([&] { return wakeup_test::is_thread_asleep(reader); }));
            peer.kill(SIGKILL);
        });
        expect_read(peer.fd(), count, Reads::by_splice);
    }));
}

// The own direction of a peer that has ended that, and goes on reading.
void test_a_splice_writes_to_a_peer_that_has_shut_down() {
    expect_success(start([] {
        constexpr long count = 5000;
        const Peer peer;
        EXPECT_EQ(peer.ask(Do::send, count), count);
        EXPECT_EQ(peer.ask(Do::shut), 0);
        EXPECT((preload_test::events_of(peer.fd(), POLLRDHUP) & POLLRDHUP) != 0);
        std::array<int, 2> ends{};
        EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
        EXPECT_EQ(write(ends[1], "xyz", 3), 3);
        EXPECT_EQ(splice(ends[0], nullptr, peer.fd(), nullptr, 3, 0), 3);
        EXPECT_EQ(peer.ask(Do::receive, 3), 3);
        EXPECT_EQ(preload_test::receive(peer.fd(), count, MSG_WAITALL).size(), static_cast<size_t>(count));
        EXPECT_EQ(preload_test::receive(peer.fd(), 1).size(), 0U);
    }));
}

// Less than the ring: all of it is in memory.
void test_the_last_bytes_are_spliced() {
    for (const long count : {1L, 5000L, 60000L}) {
        expect_success(start([&] {
            const Peer peer;
            EXPECT_EQ(peer.ask(Do::send, count), count);
            EXPECT_EQ(peer.ask(Do::close), 0);
            EXPECT((preload_test::events_of(peer.fd(), POLLRDHUP) & POLLRDHUP) != 0);
            expect_read(peer.fd(), count, Reads::by_splice);
            EXPECT_EQ(preload_test::receive(peer.fd(), 1).size(), 0U);
        }));
    }
}

// A peer that sends and then shuts down asks for the unread bytes, to send them again by TCP. Programs such as wrk take
// EAGAIN for an error when poll or epoll_wait has reported bytes.
void read_what_was_reported(size_t size, useconds_t pause_us) {
    constexpr long count = 5000;
    constexpr int time_to_read_ms = 5; // see stream_give_back.cpp
    const Peer peer;
    peer.ping_pong();
    EXPECT_EQ(fcntl(peer.fd(), F_SETFL, O_NONBLOCK), 0);
    peer.tell(Do::send, count);
    peer.tell(Do::shut);
    for (long got = 0; got < count;) {
        const auto asked = fabtests::Clock::now();
        EXPECT((preload_test::events_of(peer.fd(), POLLIN) & POLLIN) != 0);
        usleep(pause_us); // the peer's request comes before the read, or after it
        std::array<char, count> text{};
        const ssize_t n = recv(peer.fd(), text.data(), std::min(size, text.size()), 0);
        if (n < 0 && errno == EAGAIN && fabtests::milliseconds_since(asked) >= time_to_read_ms) {
            continue; // a busy machine
        }
        EXPECT(n > 0);
        for (ssize_t at = 0; at < n; ++at) {
            EXPECT_EQ(text[static_cast<size_t>(at)], wakeup_test::sent_byte(got++));
        }
    }
    EXPECT((preload_test::events_of(peer.fd(), POLLIN) & POLLIN) != 0);
    EXPECT_EQ(preload_test::receive(peer.fd(), 1).size(), 0U);
    EXPECT_EQ(peer.answer(), count);
    EXPECT_EQ(peer.answer(), 0);
}

void test_reported_bytes_are_read_while_the_peer_shuts_down() {
    constexpr size_t all = 5000;
    constexpr size_t few = 700;
    constexpr unsigned times = 60;
    constexpr unsigned step_us = 7;
    for (unsigned i = 0; i < times; ++i) {
        expect_success(start([&] { read_what_was_reported(i % 2 == 0 ? all : few, i * step_us); }));
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_all_is_read_late_from_a_peer_that_has_closed),
        FABTEST(test_all_is_read_late_from_a_peer_that_was_killed),
        FABTEST(test_all_is_spliced_late_from_a_peer_that_has_closed),
        FABTEST(test_all_is_spliced_later_from_a_peer_that_has_closed),
        FABTEST(test_the_last_bytes_are_spliced),
        FABTEST(test_a_splice_goes_on_if_the_peer_is_killed_in_it),
        FABTEST(test_a_splice_writes_to_a_peer_that_has_shut_down),
        FABTEST(test_reported_bytes_are_read_while_the_peer_shuts_down),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
