// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A peer that does not answer for a while, since it is stopped: calls that do not block do not wait for it, none of
// them loses a byte, and what they have begun is done once it goes on. slow_peer_test.sh runs it.
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "preload/test/pair.hpp"
#include "preload/test/wakeup_parts/peer.hpp"
#include "preload/test/wakeup_parts/sleeper.hpp"

namespace {

using wakeup_test::Do;
using wakeup_test::Peer;
using wakeup_test::Sleeper;

constexpr long unread = 5000;
constexpr int tries = 5;
// On a busy machine, a call that does not wait may take that, but not most of them.
constexpr std::chrono::milliseconds slow(50);
constexpr std::chrono::milliseconds slow_spawn(200); // those that wait take 250 ms; others execute a shell

template <class Call> int is_slow(Call&& call, std::chrono::milliseconds least = slow) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    return std::chrono::steady_clock::now() - begin >= least ? 1 : 0;
}

void set_nonblocking(int fd) { EXPECT_EQ(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK), 0); }

int tcp_state(int fd) {
    tcp_info info{};
    socklen_t length = sizeof(info);
    EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
    return info.tcpi_state;
}

// Both directions still carry bytes.
void expect_alive(const Peer& peer) { peer.ping_pong(); }

void test_shutdown_does_not_wait_long_for_a_stopped_peer() {
    int waits = 0;
    for (int i = 0; i < tries; ++i) {
        const Peer peer;
        const std::string bytes(unread, 'b');
        preload_test::send_all(peer.fd(), bytes);
        peer.stop();
        waits += is_slow([&] { EXPECT_EQ(shutdown(peer.fd(), SHUT_WR), 0); });
        EXPECT_EQ(send(peer.fd(), "x", 1, MSG_NOSIGNAL), -1);
        EXPECT_EQ(errno, EPIPE);
        peer.kill(SIGCONT);
        EXPECT_EQ(peer.ask(Do::receive, unread), unread);
        EXPECT_EQ(peer.ask(Do::receive, 1), -1); // the end
        EXPECT_EQ(peer.ask(Do::send, 4), 4);     // and no reset
        EXPECT_EQ(preload_test::receive(peer.fd(), 4, MSG_WAITALL).size(), 4);
    }
    EXPECT(2 * waits < tries);
}

// The peer may want to have the bytes of the ring by the kernel, which nobody could send behind EOF. False: the machine
// was so busy that the time was over in which EOF waits for the peer.
bool shut_down_with_a_child_that_closes() {
    constexpr std::chrono::milliseconds waits_at_least(500);
    const Peer peer;
    const std::string bytes(unread, 'b');
    preload_test::send_all(peer.fd(), bytes);
    peer.stop();
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(shutdown(peer.fd(), SHUT_WR), 0);
    const pid_t child = fork();
    if (child == 0) {
        close(peer.fd());
        _exit(0);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    const int state = tcp_state(peer.fd());
    const bool shown = std::chrono::steady_clock::now() - begin < waits_at_least;
    EXPECT(!shown || state == TCP_ESTABLISHED); // else its end is out, before the bytes
    peer.kill(SIGCONT);
    EXPECT_EQ(peer.ask(Do::receive, unread), unread);
    EXPECT_EQ(peer.ask(Do::receive, 1), -1); // the end
    EXPECT_EQ(peer.ask(Do::send, 4), 4);     // and no reset
    EXPECT_EQ(preload_test::receive(peer.fd(), 4, MSG_WAITALL).size(), 4);
    return shown;
}

void test_a_child_that_closes_leaves_a_shutdown_to_the_service() {
    constexpr int attempts = 10;
    bool shown = false;
    for (int i = 0; i < attempts && !shown; ++i) {
        shown = shut_down_with_a_child_that_closes();
    }
    EXPECT(shown);
}

// The process whose service is in charge closes its descriptor: the other one's peer reads EOF all the same.
void test_a_shutdown_is_done_when_the_process_closes_that_made_it() {
    const Peer peer;
    const std::string bytes(unread, 'b');
    preload_test::send_all(peer.fd(), bytes);
    peer.stop();
    const pid_t child = fork();
    if (child == 0) {
        const bool done = shutdown(peer.fd(), SHUT_WR) == 0;
        close(peer.fd());
        _exit(done ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    peer.kill(SIGCONT);
    EXPECT_EQ(peer.ask(Do::receive, unread), unread);
    EXPECT_EQ(peer.ask(Do::receive, 1), -1);
    EXPECT_EQ(peer.ask(Do::send, 4), 4);
    EXPECT_EQ(preload_test::receive(peer.fd(), 4, MSG_WAITALL).size(), 4);
}

// Reads by splice as the events tell, into a pipe with space for all.
void expect_spliced(int fd, int set, bool& refused, const std::array<int, 2>& ends) {
    for (long got = 0; got < unread;) {
        const ssize_t n = splice(fd, nullptr, ends[1], nullptr, unread, SPLICE_F_NONBLOCK);
        if (n > 0) {
            got += n;
            continue;
        }
        EXPECT_EQ(n, -1);
        EXPECT_EQ(errno, EAGAIN);
        refused = true;
        epoll_event event{};
        EXPECT_EQ(epoll_wait(set, &event, 1, static_cast<int>(fabtests::patience(5000))), 1);
    }
}

void expect_splice_after_stop(uint32_t mode) {
    int waits = 0;
    for (int i = 0; i < tries; ++i) {
        const Peer peer;
        set_nonblocking(peer.fd());
        const int set = epoll_create1(EPOLL_CLOEXEC);
        epoll_event event{};
        event.events = EPOLLIN | mode;
        EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, peer.fd(), &event), 0);
        EXPECT_EQ(peer.ask(Do::send, unread), unread);
        EXPECT_EQ(epoll_wait(set, &event, 1, static_cast<int>(fabtests::patience(5000))), 1);
        std::array<int, 2> ends{};
        EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
        peer.stop();
        waits += is_slow([&] {
            EXPECT_EQ(splice(peer.fd(), nullptr, ends[1], nullptr, unread, SPLICE_F_NONBLOCK), -1);
            EXPECT_EQ(errno, EAGAIN);
        });
        EXPECT_EQ(epoll_wait(set, &event, 1, 20), 0); // what splice does not find is not reported
        peer.kill(SIGCONT);
        bool refused = false;
        expect_spliced(peer.fd(), set, refused, ends);
        EXPECT_EQ(fcntl(peer.fd(), F_SETFL, fcntl(peer.fd(), F_GETFL) & ~O_NONBLOCK), 0);
        expect_alive(peer);
        for (const int fd : {ends[0], ends[1], set}) {
            close(fd);
        }
    }
    EXPECT(2 * waits < tries);
}

void test_splice_does_not_wait_for_a_stopped_peer() { expect_splice_after_stop(0); }
void test_splice_is_repeated_at_an_edge() { expect_splice_after_stop(EPOLLET); }

// As the kernel's, it blocks as long as there is nothing to splice. Longer than any timeout of the library.
void test_a_blocking_splice_waits_for_a_stopped_peer() {
    constexpr int stopped_s = 6;
    const Peer peer;
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
    EXPECT_EQ(peer.ask(Do::send, unread), unread);
    peer.stop();
    std::thread waker([&] {
        sleep(stopped_s);
        peer.kill(SIGCONT);
    });
    long got = 0;
    while (got < unread) {
        const ssize_t n = splice(peer.fd(), nullptr, ends[1], nullptr, unread, 0);
        if (n <= 0) {
            break;
        }
        got += n;
    }
    waker.join();
    EXPECT_EQ(got, unread);
    expect_alive(peer);
    close(ends[0]);
    close(ends[1]);
}

// Whenever the peer goes on: also between two steps of the call.
void test_a_blocking_splice_never_refuses() {
    constexpr int rounds = 100;
    constexpr useconds_t later_us = 30;
    int refused = 0;
    for (int i = 0; i < rounds; ++i) {
        const Peer peer;
        std::array<int, 2> ends{};
        EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
        EXPECT_EQ(peer.ask(Do::send, unread), unread);
        peer.stop();
        std::thread waker([&, i] {
            usleep(later_us * static_cast<useconds_t>(i));
            peer.kill(SIGCONT);
        });
        for (long got = 0; got < unread;) {
            const ssize_t n = splice(peer.fd(), nullptr, ends[1], nullptr, unread, 0);
            if (n > 0) {
                got += n;
                continue;
            }
            EXPECT_EQ(n, -1);
            EXPECT_EQ(errno, EAGAIN);
            ++refused;
        }
        waker.join();
        close(ends[0]);
        close(ends[1]);
    }
    EXPECT_EQ(refused, 0);
}

// A connection whose return to the kernel waits for the peer: nothing is received meanwhile.
class Returning {
  public:
    Returning() {
        std::array<int, 2> ends{};
        EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
        EXPECT_EQ(peer_.ask(Do::send, unread), unread);
        peer_.stop();
        set_nonblocking(fd());
        EXPECT_EQ(splice(fd(), nullptr, ends[1], nullptr, unread, 0), -1);
        EXPECT_EQ(errno, EAGAIN);
        EXPECT_EQ(fcntl(fd(), F_SETFL, fcntl(fd(), F_GETFL) & ~O_NONBLOCK), 0);
        close(ends[0]);
        close(ends[1]);
    }
    [[nodiscard]] int fd() const { return peer_.fd(); }
    void limit_time(long ms) const {
        const timeval limit{0, ms * 1000};
        EXPECT_EQ(setsockopt(fd(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
    }
    [[nodiscard]] ssize_t receive() const {
        std::array<char, unread> bytes{};
        return recv(fd(), bytes.data(), bytes.size(), 0);
    }
    // What was asked for before is done once the peer goes on.
    void expect_done() const {
        peer_.kill(SIGCONT);
        EXPECT_EQ(preload_test::receive(fd(), unread, MSG_WAITALL).size(), static_cast<size_t>(unread));
        expect_alive(peer_);
    }

  private:
    Peer peer_;
};

void test_a_time_limit_ends_a_call_while_a_return_waits() {
    constexpr long limit_ms = 200;
    const Returning connection;
    connection.limit_time(limit_ms);
    const auto begin = std::chrono::steady_clock::now();
    Sleeper call([&] { return connection.receive(); });
    EXPECT_EQ(call.result(), -1);
    EXPECT_EQ(call.error(), EAGAIN);
    EXPECT(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(limit_ms));
    connection.limit_time(0);
    connection.expect_done();
}

void set_handler(int number, int flags) {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    action.sa_flags = flags;
    EXPECT_EQ(sigaction(number, &action, nullptr), 0);
}

void test_a_signal_ends_a_call_while_a_return_waits() {
    constexpr int signals = 100;
    const Returning connection;
    set_handler(SIGUSR1, SA_RESTART);
    set_handler(SIGUSR2, 0);
    Sleeper call([&] { return connection.receive(); });
    for (int i = 0; i < signals; ++i) {
        call.await_asleep(); // throws if the call is over
        call.signal(SIGUSR1);
    }
    // It ends a call that sleeps; again, if it came between two looks.
    EXPECT(wakeup_test::eventually([&] {
        call.signal(SIGUSR2);
        return call.is_over();
    }));
    EXPECT_EQ(call.result(), -1);
    EXPECT_EQ(call.error(), EINTR);
    connection.expect_done();
}

void test_a_thread_is_cancelled_while_a_return_waits() {
    const Returning connection;
    Sleeper call([&] { return connection.receive(); });
    call.await_asleep();
    call.cancel();
    connection.expect_done();
}

void test_only_the_first_spawn_waits_for_a_stopped_peer() {
    const Peer peer;
    EXPECT_EQ(peer.ask(Do::send, unread), unread);
    EXPECT_EQ(fcntl(peer.fd(), F_SETFD, 0), 0);
    peer.stop();
    EXPECT_EQ(system(":"), 0);
    int waits = 0;
    for (int i = 0; i < tries; ++i) {
        waits += is_slow([] { EXPECT_EQ(system(":"), 0); }, slow_spawn);
    }
    peer.kill(SIGCONT);
    EXPECT_EQ(preload_test::receive(peer.fd(), unread, MSG_WAITALL).size(), static_cast<size_t>(unread));
    expect_alive(peer);
    EXPECT(2 * waits < tries);
}

// The state of a process's main thread, as in proc(5).
char state_of(pid_t process) {
    std::ifstream file("/proc/" + std::to_string(process) + "/stat");
    std::string word;
    char state = '?';
    file >> word >> word >> state; // its name has no blanks
    return state;
}

// What the kernel watches a member of a set for.
unsigned kernel_events_of(int set, int member) {
    std::ifstream file("/proc/self/fdinfo/" + std::to_string(set));
    for (std::string line; std::getline(file, line);) {
        int fd = -1;
        unsigned events = 0;
        if (sscanf(line.c_str(), "tfd: %d events: %x", &fd, &events) == 2 && fd == member) {
            return events;
        }
    }
    return 0;
}

// The parent's service hears late that the child waits in their set, when the child has left it to the kernel.
void test_a_late_service_leaves_a_set_as_a_child_has_made_it() {
    const Peer peer;
    const int set = epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | EPOLLET;
    EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, peer.fd(), &event), 0);
    std::array<int, 2> has_waited{};
    EXPECT_EQ(pipe2(has_waited.data(), O_CLOEXEC), 0);
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child == 0) {
        char byte = 0;
        bool right = read(has_waited[0], &byte, 1) == 1 && ::kill(parent, SIGSTOP) == 0;
        while (state_of(parent) != 'T') {
            usleep(1000);
        }
        (void)epoll_wait(set, &event, 1, 0);
        right = (kernel_events_of(set, peer.fd()) & EPOLLOUT) != 0 && right;
        ::kill(parent, SIGCONT);
        constexpr int looks = 30; // while the service hears of it
        for (int i = 0; i < looks && right; ++i) {
            usleep(10000);
            right = (kernel_events_of(set, peer.fd()) & EPOLLOUT) != 0;
        }
        _exit(right ? 0 : 1);
    }
    (void)epoll_wait(set, &event, 1, 0);
    EXPECT_EQ(write(has_waited[1], "w", 1), 1);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    for (const int fd : {set, has_waited[0], has_waited[1]}) {
        close(fd);
    }
}

// TCP has no space for what this process has requested again when the peer closes, and it ends before this process
// reads.
void expect_all_of_a_peer_that_ends(wakeup_test::End how) {
    constexpr long much = 200000;
    constexpr int little = 32768;
    const Peer peer;
    EXPECT_EQ(setsockopt(peer.fd(), SOL_SOCKET, SO_RCVBUF, &little, sizeof(little)), 0);
    EXPECT_EQ(peer.ask(Do::narrow), 0);
    long sent = peer.ask(Do::block, much);
    long read = 0;
    while (sent - read < much) { // a ring grows once some of it was read
        read += static_cast<long>(preload_test::receive(peer.fd(), little).size());
        sent += peer.ask(Do::block, much);
    }
    const int made = preload_test::passed(peer.fd());
    peer.tell(Do::end, how);
    std::array<char, 10000> some{};
    ssize_t n = 0;
    usleep(10000); // the peer has ended, or waits
    while ((n = recv(made, some.data(), some.size(), 0)) > 0) {
        for (ssize_t i = 0; i < n; ++i) {
            EXPECT_EQ(some[static_cast<size_t>(i)], wakeup_test::sent_byte(read + i));
        }
        read += n;
    }
    EXPECT_EQ(n, 0);
    EXPECT_EQ(read, sent);
    close(made);
}

void test_a_peer_that_exits_sends_what_it_has_closed() { expect_all_of_a_peer_that_ends(wakeup_test::by_exit); }
void test_a_peer_that_exits_by_a_system_call_sends_what_it_has_closed() {
    expect_all_of_a_peer_that_ends(wakeup_test::by_system_call);
}
void test_a_peer_that_executes_a_program_sends_what_it_has_closed() {
    expect_all_of_a_peer_that_ends(wakeup_test::by_another_program);
}
// It goes on, but without a service.
void test_a_peer_with_a_filter_sends_what_it_has_closed() { expect_all_of_a_peer_that_ends(wakeup_test::by_filter); }

} // namespace

int main() {
#ifdef __SANITIZE_THREAD__
    printf("1..0 # SKIP slow_peer_test: ThreadSanitizer does not survive that a process with threads forks\n");
    return 0;
#endif
    const CMUnitTest tests[] = {
        FABTEST(test_shutdown_does_not_wait_long_for_a_stopped_peer),
        FABTEST(test_a_child_that_closes_leaves_a_shutdown_to_the_service),
        FABTEST(test_a_shutdown_is_done_when_the_process_closes_that_made_it),
        FABTEST(test_splice_does_not_wait_for_a_stopped_peer),
        FABTEST(test_splice_is_repeated_at_an_edge),
        FABTEST(test_a_blocking_splice_waits_for_a_stopped_peer),
        FABTEST(test_a_blocking_splice_never_refuses),
        FABTEST(test_a_time_limit_ends_a_call_while_a_return_waits),
        FABTEST(test_a_signal_ends_a_call_while_a_return_waits),
        FABTEST(test_a_thread_is_cancelled_while_a_return_waits),
        FABTEST(test_only_the_first_spawn_waits_for_a_stopped_peer),
        FABTEST(test_a_peer_that_exits_sends_what_it_has_closed),
        FABTEST(test_a_peer_that_exits_by_a_system_call_sends_what_it_has_closed),
        FABTEST(test_a_peer_that_executes_a_program_sends_what_it_has_closed),
        FABTEST(test_a_peer_with_a_filter_sends_what_it_has_closed),
        FABTEST(test_a_late_service_leaves_a_set_as_a_child_has_made_it),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
