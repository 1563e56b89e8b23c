// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Wake-ups between processes of different users, by themselves: what a peer can do with the pipe that it is given, and
// what a process can be made to do by one that it is given.
#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fabtests/common/test.hpp"
#include "preload/rendezvous/descriptors.hpp"
#include "preload/wait/wakeup.hpp"
#include "preload/wait/wakeup_pipe.hpp"

namespace {

namespace wakeup = preload::wakeup;
namespace wakeup_pipe = preload::wakeup_pipe;
using wakeup::Id;

constexpr uid_t user = 4711; // the other process's

// Of a process that is not this one.
Id foreign_id(uint64_t process, uint64_t index) { return uint64_t{1} << 63 | process << 16 | index; }

bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

size_t count_open() {
    size_t count = 0;
    for (int fd = 0; fd < 4096; ++fd) {
        count += is_open(fd) ? 1 : 0;
    }
    return count;
}

// A pipe instead of an eventfd, as between processes of different users: the test is the sleeper.
class Sleeper {
  public:
    Sleeper() : ends_(wakeup_pipe::make()) { EXPECT(ends_.reader >= 0 && ends_.writer >= 0); }
    Sleeper(const Sleeper&) = delete;
    Sleeper& operator=(const Sleeper&) = delete;
    ~Sleeper() {
        go();
        close(ends_.writer);
    }
    void go() {
        if (ends_.reader >= 0) {
            close(std::exchange(ends_.reader, -1));
        }
    }
    [[nodiscard]] bool has_any() const {
        pollfd one{ends_.reader, POLLIN, 0};
        return poll(&one, 1, 0) == 1;
    }
    // Whether there was something.
    [[nodiscard]] bool drain() const {
        const bool had = has_any();
        wakeup_pipe::drain(ends_.reader);
        EXPECT(!has_any());
        return had;
    }
    [[nodiscard]] bool learn(Id id, uid_t of = user) const { return wakeup::learn_pipe(id, of, ends_.writer); }
    [[nodiscard]] int reader() const { return ends_.reader; }
    [[nodiscard]] int writer() const { return ends_.writer; }

  private:
    wakeup_pipe::Ends ends_;
};

void test_an_id_whose_pipe_was_learned_is_woken_by_a_byte() {
    const Id id = foreign_id(6, 1);
    const Sleeper one;
    EXPECT(one.learn(id));
    EXPECT(!one.has_any());
    EXPECT(wakeup::wake(id, user));
    EXPECT(one.drain());
    EXPECT(wakeup::wake(id, user));
    EXPECT(wakeup::wake(id, user));
    EXPECT(one.drain());
}

// Who wakes never waits, and whoever is asleep is woken by what comes after it has drained.
void test_a_pipe_that_is_full_counts_as_woken() {
    const Id id = foreign_id(6, 2);
    const Sleeper one;
    EXPECT(one.learn(id));
    EXPECT(fcntl(one.writer(), F_SETPIPE_SZ, 4096) >= 4096);
    for (int i = 0; i < 10000; ++i) {
        EXPECT(wakeup::wake(id, user));
    }
    EXPECT(one.drain());
    EXPECT(wakeup::wake(id, user));
    EXPECT(one.drain());
}

// A peer may enlarge the pipe and fill it. What is drained makes a place for the next byte, whose arrival wakes a set's
// edge-triggered waiter.
void test_a_pipe_that_a_peer_keeps_full_wakes_again_after_each_look() {
    const Id id = foreign_id(6, 5);
    const Sleeper one;
    EXPECT(one.learn(id));
    EXPECT(fcntl(one.writer(), F_SETPIPE_SZ, 1 << 20) >= 1 << 20);
    const int set = epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{EPOLLIN | EPOLLET, {}};
    EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, one.reader(), &event), 0);
    const std::vector<char> bytes(1 << 16);
    for (int round = 0; round < 10; ++round) {
        while (write(one.writer(), bytes.data(), bytes.size()) > 0) {
        }
        EXPECT_EQ(epoll_wait(set, &event, 1, 0), 1);
        wakeup_pipe::drain(one.reader());
        EXPECT_EQ(epoll_wait(set, &event, 1, 0), 0);
        EXPECT(wakeup::wake(id, user));
        EXPECT_EQ(epoll_wait(set, &event, 1, 0), 1);
    }
    close(set);
}

// The giver shares what it has passed: were that written, it could make the write block.
void test_who_has_given_a_pipe_cannot_make_its_writer_block() {
    const Sleeper one;
    const int own = wakeup_pipe::open_writer(one.writer());
    EXPECT(own >= 0);
    EXPECT_EQ(fcntl(own, F_GETFD), FD_CLOEXEC);
    EXPECT_EQ(fcntl(one.writer(), F_SETFL, 0), 0);
    EXPECT_EQ(fcntl(own, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
    for (int i = 0; i < 70000; ++i) {
        EXPECT(wakeup_pipe::notify(own)); // which would hang
    }
    close(own);
}

volatile sig_atomic_t signals = 0;

// A pipe whose reader has gone raises SIGPIPE, which is not the program's business.
template <class Notify> void expect_no_signal(Notify&& notify) {
    struct sigaction count {};
    struct sigaction before {};
    count.sa_handler = [](int) { signals = signals + 1; };
    sigaction(SIGPIPE, &count, &before);
    sigset_t pipe_signal;
    sigset_t pending;
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    signals = 0;
    {
        Sleeper one;
        const int own = wakeup_pipe::open_writer(one.writer());
        EXPECT(notify(own));
        one.go();
        EXPECT(!notify(own));
        EXPECT_EQ(signals, 0);
        // One that the program has blocked is pending only if it was before.
        sigprocmask(SIG_BLOCK, &pipe_signal, nullptr);
        EXPECT(!notify(own));
        EXPECT(sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 0);
        raise(SIGPIPE);
        EXPECT(!notify(own));
        EXPECT(sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1);
        sigprocmask(SIG_UNBLOCK, &pipe_signal, nullptr);
        EXPECT_EQ(signals, 1);
        close(own);
    }
    sigaction(SIGPIPE, &before, nullptr);
}

void test_a_pipe_that_nobody_reads_is_reported_without_a_signal() { expect_no_signal(wakeup_pipe::notify); }

void test_before_linux_6_18_too() { expect_no_signal(wakeup_pipe::notify_with_signal_blocked); }

void test_a_sleeper_that_has_gone_is_not_woken() {
    const Id id = foreign_id(6, 3);
    Sleeper one;
    EXPECT(one.learn(id));
    one.go();
    EXPECT(!wakeup::wake(id, user));
}

void test_only_the_writer_of_a_pipe_is_learned() {
    const Id id = foreign_id(7, 1);
    const Sleeper one;
    std::array<int, 2> pair{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()), 0);
    const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    const int event = eventfd(0, EFD_CLOEXEC);
    const size_t open_before = count_open();
    for (const int wrong : {one.reader(), pair[0], null, event, -1}) {
        EXPECT(!wakeup::learn_pipe(id, user, wrong));
    }
    EXPECT_EQ(count_open(), open_before);
    EXPECT(!wakeup::wake(id, user));
    for (const int fd : {pair[0], pair[1], null, event}) {
        close(fd);
    }
}

// As a process of that user does it, which has none of this one's rights.
int open_as_stranger(int given, int flags) {
    constexpr uid_t nobody = 65534;
    const pid_t child = fork();
    if (child == 0) {
        const std::string path = "/proc/self/fd/" + std::to_string(given);
        _exit(setresuid(nobody, nobody, nobody) != 0 ? 2 : open(path.c_str(), flags | O_CLOEXEC) >= 0 ? 0 : 1);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WEXITSTATUS(status);
}

void test_other_users_can_write_a_pipe_and_not_read_it() {
    const Sleeper one;
    struct stat about {};
    EXPECT_EQ(fstat(one.writer(), &about), 0);
    EXPECT_EQ(about.st_mode & 0777U, 0622U);
    if (geteuid() != 0) {
        throw fabtests::Skip("needs root to become another user");
    }
    EXPECT_EQ(open_as_stranger(one.writer(), O_WRONLY | O_NONBLOCK), 0);
    EXPECT_EQ(open_as_stranger(one.writer(), O_RDONLY | O_NONBLOCK), 1);
    EXPECT_EQ(open_as_stranger(one.writer(), O_RDWR | O_NONBLOCK), 1);
}

void test_an_own_id_has_one_pipe() {
    Id id = 0;
    int fd = -1;
    {
        const wakeup::Own own(true);
        id = own.id();
        EXPECT_EQ(wakeup::pipe_writer(id), -1); // nobody has asked for it
        fd = wakeup::pipe_reader(id);
        EXPECT(is_open(fd));
        EXPECT_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
        EXPECT_EQ(wakeup::pipe_reader(id), fd);
        const int peer = wakeup_pipe::open_writer(wakeup::pipe_writer(id));
        EXPECT(wakeup_pipe::notify(peer));
        pollfd one{fd, POLLIN, 0};
        EXPECT_EQ(poll(&one, 1, 0), 1);
        wakeup::drain(id);
        EXPECT_EQ(poll(&one, 1, 0), 0);
        close(peer);
    }
    const wakeup::Own again(true);
    EXPECT_EQ(again.id(), id);
    EXPECT_EQ(wakeup::pipe_reader(id), fd);
    EXPECT_EQ(wakeup::pipe_reader(foreign_id(8, 1)), -1);
    EXPECT_EQ(wakeup::pipe_writer(foreign_id(8, 1)), -1);
}

// The id is read from memory that a peer writes to. Another user's process, which has given an id as its own, is not
// woken in the place of whose id it is, and the other way round.
void test_an_id_is_only_its_users() {
    const Id id = foreign_id(13, 1);
    const Sleeper liar;
    EXPECT(liar.learn(id, user + 1));
    EXPECT(!wakeup::wake(id, user));
    EXPECT(!liar.has_any());
    const int event = eventfd(0, EFD_CLOEXEC);
    EXPECT(wakeup::learn(id, user, preload::descriptors::keep(fcntl(event, F_DUPFD_CLOEXEC, 3)), -1));
    EXPECT(wakeup::wake(id, user));
    uint64_t count = 0;
    EXPECT_EQ(read(event, &count, sizeof(count)), static_cast<ssize_t>(sizeof(count)));
    close(event);
    EXPECT(!liar.has_any());
}

} // namespace

int main() {
    // Numbers beyond the soft limit are what the library takes its own from.
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = std::min<rlim_t>(1024, limit.rlim_max / 2);
    setrlimit(RLIMIT_NOFILE, &limit);
    const CMUnitTest tests[] = {
        FABTEST(test_an_id_whose_pipe_was_learned_is_woken_by_a_byte),
        FABTEST(test_a_pipe_that_is_full_counts_as_woken),
        FABTEST(test_a_pipe_that_a_peer_keeps_full_wakes_again_after_each_look),
        FABTEST(test_who_has_given_a_pipe_cannot_make_its_writer_block),
        FABTEST(test_a_pipe_that_nobody_reads_is_reported_without_a_signal),
        FABTEST(test_before_linux_6_18_too),
        FABTEST(test_a_sleeper_that_has_gone_is_not_woken),
        FABTEST(test_only_the_writer_of_a_pipe_is_learned),
        FABTEST(test_other_users_can_write_a_pipe_and_not_read_it),
        FABTEST(test_an_own_id_has_one_pipe),
        FABTEST(test_an_id_is_only_its_users),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
