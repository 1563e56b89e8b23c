// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Threads that close, disconnect and use the fds of one connection at the same time: the test stops one of them at a
// lock, or in a wait, and does meanwhile what the other one would do. What the functions under test need of the rest of
// the library is here, too.
#include <atomic>
#include <cerrno>
#include <functional>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "preload/base/system.hpp"
#include "preload/connection/connection_pool.hpp"
#include "preload/connection/gate.hpp"
#include "preload/connection/io.hpp"
#include "preload/connection/lifecycle_internal.hpp"
#include "preload/connection/made_sockets.hpp"
#include "preload/connection/outside_use.hpp"
#include "preload/connection/stream.hpp"
#include "preload/path/segment.hpp"
#include "preload/rendezvous/service.hpp"
#include "preload/stats/explain.hpp"
#include "preload/stats/page.hpp"
#include "preload/wait/epoll_set.hpp"
#include "preload/wait/poll.hpp"
#include "preload/wait/wakeup.hpp"

#include "fabtests/common/test.hpp" // last: cmocka has macros of plain names
#include "preload/test/at_lock.hpp"
#include "preload/test/listener.hpp"

namespace {

std::function<void()> in_linger; // what another thread does while one waits

} // namespace

namespace preload {
namespace lifecycle {
bool in_vfork_child() { return false; }
bool is_left_to_kernel() { return false; }
} // namespace lifecycle
namespace io {
bool foreign(Connection&) { return false; }
} // namespace io
namespace outside_use {
void note_number(Connection&, int) {}
void leave_standard_number(Connection&) {}
} // namespace outside_use
namespace explain {
void note_peer(Connection&, int) {}
bool is_wanted() { return false; }
void record(Connection&, int) {}
} // namespace explain
namespace wait {
int poll(pollfd* fds, nfds_t count, int64_t, const sigset_t*) {
    if (in_linger) {
        std::exchange(in_linger, nullptr)();
    }
    return sys::poll(fds, count, 0);
}
} // namespace wait
namespace service {
bool take_steps_at(uint64_t) { return false; }
bool go_on_with(Connection&) { return false; }
uint64_t own_name() { return 1; }
uint64_t promised_name() { return 1; }
bool ask(path::Segment&, unsigned) { return false; }
bool ask_holder(uint64_t, uint64_t) { return false; }
bool ask_to_wake(Connection&, uint64_t) { return false; }
void announce_shared_set(uint64_t) {}
void guard_again(Connection&) {}
void abandoned() {}
} // namespace service
namespace stats {
void began(Connection&, int) {}
void ended(Connection&) {}
void refresh(Connection&) {}
void slept(uint64_t) {}
namespace detail {
void compare(base::stats::Row&, const Connection&, const ConnectionState&) {}
void moved_rare_case(Connection&, ConnectionState&, bool, uint64_t, uint64_t, uint32_t) {}
base::stats::Row* describe_late(Connection&) { return nullptr; }
} // namespace detail
} // namespace stats
} // namespace preload

namespace {

using namespace preload;
using preload_test::AtLock;

// A connection with a segment, and its peer, which is the kernel's.
class Tracked {
  public:
    Tracked() {
        std::tie(fd, peer) = preload_test::connected_pair();
        connection = lifecycle::began(fd, Role::connect);
        EXPECT(connection != nullptr);
        const int memory = path::open_memory();
        connection->segment = path::make_segment(7, memory);
        close(memory);
        EXPECT(connection->segment.load() != nullptr);
        state().gate = gate::careful;
    }
    Tracked(const Tracked&) = delete;
    Tracked& operator=(const Tracked&) = delete;
    ~Tracked() { close(peer); }

    [[nodiscard]] ConnectionState& state() const { return *connection->state.load(); }
    // Another fd of it.
    [[nodiscard]] int duplicated() const {
        const int made = dup(fd);
        lifecycle::duplicate(fd, made);
        return made;
    }
    // This process has not said that it is about to end it.
    [[nodiscard]] bool is_open() const {
        return !connection->left && state().open.load() == 1 && connection->out_ring().writer.ends.load() == 0;
    }

    int fd = -1;
    int peer = -1;
    Connection* connection = nullptr;
};

int close_number(int fd, bool too_late) {
    if (too_late) {
        errno = EBADF;
        return -1;
    }
    return close(fd);
}

int close_tracked(int fd) {
    return lifecycle::close(fd, [&](bool too_late) { return close_number(fd, too_late); });
}

bool is_readable(int fd) {
    pollfd one{fd, POLLIN, 0};
    return poll(&one, 1, 0) == 1;
}

void take(int fd) {
    uint64_t count = 0;
    EXPECT_EQ(read(fd, &count, sizeof(count)), static_cast<ssize_t>(sizeof(count)));
}

// A thread sleeps on an eventfd of its own. It may begin until the fd is gone from the table, or look for bytes once
// more and sleep again.
void test_a_close_wakes_a_thread_that_has_just_fallen_asleep() {
    const Tracked one;
    const wakeup::Own sleeper(true);
    const int eventfd = wakeup::descriptor(sleeper.id());
    EXPECT(eventfd >= 0);
    one.state().gate = 0; // so that the last step of closing is the first one that takes locks
    EXPECT(one.state().read_lock.acquire());
    {
        const AtLock closing([&] { EXPECT_EQ(close_tracked(one.fd), 0); });
        if (is_readable(eventfd)) {
            take(eventfd);
        }
        one.connection->guarded = sleeper.id();
        one.state().read_lock.release();
    }
    EXPECT(is_readable(eventfd));
}

// connect(2) with AF_UNSPEC, after a hand-over that has failed.
void test_a_disconnect_waits_for_a_thread_that_reads_memory() {
    for (const bool reads : {true, false}) {
        const Tracked one;
        OwnerLock& lock = reads ? one.state().read_lock : one.state().write_lock;
        EXPECT(lock.acquire());
        {
            const AtLock disconnecting([&] { lifecycle::disconnected(*one.connection); });
            EXPECT(!disconnecting.has_ended());
            EXPECT(one.connection->segment.load() != nullptr);
            lock.release();
        }
        EXPECT(one.connection->segment.load() == nullptr);
        EXPECT_EQ(table::find(one.fd), 0U);
        EXPECT(made_sockets::is_tcp(one.fd));
        close(one.fd);
    }
}

void test_a_disconnect_ends_all_of_many_fds() {
    const Tracked one;
    std::vector<int> all{one.fd};
    for (int i = 0; i < 40; ++i) {
        all.push_back(one.duplicated());
    }
    lifecycle::disconnected(*one.connection);
    EXPECT_EQ(one.connection->numbers.load(), 0);
    for (const int fd : all) {
        EXPECT_EQ(table::find(fd), 0U);
        close(fd);
    }
}

// Two threads close an fd whose connection has another one. One of them is stopped at the lock of a set.
void test_a_second_close_of_an_fd_does_not_end_the_connection_of_another_fd() {
    const Tracked one;
    const int other = one.duplicated();
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    EpollSet* const set = EpollSet::make(epoll);
    uintptr_t before = 0;
    EXPECT(table::put(epoll, reinterpret_cast<uintptr_t>(set) | table::set_bit, before));
    epoll_event event{};
    EXPECT_EQ(set->control(epoll, EPOLL_CTL_ADD, one.fd, &event), 0);
    int second = 0;
    std::optional<LocalLock::Hold> hold(std::in_place, set->lock());
    {
        const AtLock closing([&] { second = close_tracked(one.fd); });
        // The first one.
        EXPECT_EQ(table::take(one.fd), reinterpret_cast<uintptr_t>(one.connection));
        one.connection->fd = other;
        one.connection->numbers.fetch_sub(1);
        EXPECT_EQ(close(one.fd), 0);
        hold.reset();
    }
    EXPECT_EQ(second, -1);
    EXPECT(table::connection(other) == one.connection);
    EXPECT(one.is_open());
    EXPECT_EQ(close_tracked(other), 0);
    EXPECT_EQ(table::take(epoll), reinterpret_cast<uintptr_t>(set) | table::set_bit);
    set->drop_number();
    close(epoll);
}

void set_linger(int fd) {
    const linger how{1, 100};
    EXPECT_EQ(setsockopt(fd, SOL_SOCKET, SO_LINGER, &how, sizeof(how)), 0);
}

// While a close lingers, another thread's is over, and the next connection has the same fd, and the same memory.
void test_a_close_that_has_lingered_too_long_does_not_close_the_next_connection() {
    const Tracked one;
    set_linger(one.fd);
    one.state().out_epoch = 1;
    one.connection->out_ring().writer.epoch = 1;
    std::optional<Tracked> next;
    in_linger = [&] {
        const int number = one.fd;
        EXPECT_EQ(close_tracked(number), 0);
        next.emplace();
        EXPECT(next->connection == one.connection);
        EXPECT_EQ(next->fd, number);
    };
    errno = 0;
    EXPECT_EQ(close_tracked(one.fd), -1);
    EXPECT_EQ(errno, EBADF);
    EXPECT(next.has_value());
    EXPECT(table::connection(next->fd) == next->connection);
    EXPECT(next->is_open());
    EXPECT_EQ(close_tracked(next->fd), 0);
    // A connection that is left to the kernel meanwhile is closed nevertheless.
    const Tracked left;
    set_linger(left.fd);
    left.state().out_epoch = 1;
    left.connection->out_ring().writer.epoch = 1;
    in_linger = [&] { (void)table::take(left.fd); };
    EXPECT_EQ(close_tracked(left.fd), 0);
}

// By a system call that the library does not see: it learns of it when the number comes again.
void test_a_connection_goes_by_another_fd_once_one_is_forgotten() {
    const Tracked one;
    const int other = one.duplicated();
    EXPECT_EQ(one.connection->fd.load(), one.fd);
    lifecycle::forget(one.fd);
    EXPECT_EQ(one.connection->fd.load(), other);
    close(one.fd);
    EXPECT_EQ(close_tracked(other), 0);
}

// However the threads of several closes overlap.
void test_a_connection_goes_by_an_fd_that_is_open() {
    constexpr int rounds = 2000;
    const Tracked one;
    int kept = one.fd;
    for (int i = 0; i < rounds; ++i) {
        const int first = kept;
        kept = dup(first);
        lifecycle::duplicate(first, kept);
        const int second = dup(first);
        lifecycle::duplicate(first, second);
        EXPECT_EQ(one.connection->fd.load(), first);
        std::atomic<int> there{0};
        const auto begin = [&](int fd) {
            ++there;
            while (there.load() != 2) {
                sched_yield();
            }
            EXPECT_EQ(close_tracked(fd), 0);
        };
        std::thread thread([&] { begin(second); });
        begin(first);
        thread.join();
        EXPECT_EQ(one.connection->fd.load(), kept);
        EXPECT_EQ(one.connection->numbers.load(), 1);
    }
    EXPECT_EQ(close_tracked(kept), 0);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_a_close_wakes_a_thread_that_has_just_fallen_asleep),
        FABTEST(test_a_disconnect_waits_for_a_thread_that_reads_memory),
        FABTEST(test_a_disconnect_ends_all_of_many_fds),
        FABTEST(test_a_second_close_of_an_fd_does_not_end_the_connection_of_another_fd),
        FABTEST(test_a_close_that_has_lingered_too_long_does_not_close_the_next_connection),
        FABTEST(test_a_connection_goes_by_another_fd_once_one_is_forgotten),
        FABTEST(test_a_connection_goes_by_an_fd_that_is_open),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
