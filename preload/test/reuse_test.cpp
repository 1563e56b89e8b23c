// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Memory that is used again while a thread, or code that a signal handler has interrupted, still has its address: what
// it does next must not be done to the next user. What the functions under test need of the rest of the library is
// here, too.
#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "preload/base/system.hpp"
#include "preload/connection/connection_pool.hpp"
#include "preload/connection/gate.hpp"
#include "preload/connection/io.hpp"
#include "preload/connection/stream.hpp"
#include "preload/connection/table.hpp"
#include "preload/path/segment.hpp"
#include "preload/rendezvous/service.hpp"
#include "preload/stats/page.hpp"
#include "preload/wait/epoll_set.hpp"

#include "fabtests/common/test.hpp" // last: cmocka has macros of plain names
#include "preload/test/at_lock.hpp"
#include "preload/test/listener.hpp"
#include "rsockets/test/asleep.hpp"

namespace preload {
namespace lifecycle {
bool in_vfork_child() { return false; }
} // namespace lifecycle
namespace io {
bool foreign(Connection&) { return false; }
} // namespace io
namespace service {
bool take_steps_at(uint64_t) { return false; }
bool go_on_with(Connection&) { return false; }
uint64_t own_name() { return 1; }
uint64_t promised_name() { return 1; }
bool ask(path::Segment&, unsigned) { return false; }
bool ask_holder(uint64_t, uint64_t) { return false; }
bool ask_to_wake(Connection&, uint64_t) { return false; }
void announce_shared_set(uint64_t) {}
} // namespace service
namespace stats {
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

path::Segment* make_segment() {
    const int fd = path::open_memory();
    path::Segment* made = path::make_segment(7, fd);
    EXPECT(made != nullptr);
    close(fd);
    return made;
}

void put(int fd, const Connection& c) {
    uintptr_t before = 0;
    EXPECT(table::put(fd, reinterpret_cast<uintptr_t>(&c), before));
}

// A connection of the kernel's, which has a segment.
struct Tracked {
    ConnectionState state;
    Connection connection;

    explicit Tracked(int fd) {
        state.connected_out = 1;
        connection.state = &state;
        connection.segment = make_segment();
        connection.fd = fd;
        connection.numbers = 1;
        put(fd, connection);
    }
};

// lifecycle::before_close() takes the locks, and then the entry of the table. After that, the number may be another
// socket's.
void test_a_connection_that_is_closed_meanwhile_does_not_consent() {
    const auto [fd, peer] = preload_test::connected_pair();
    Tracked one(fd);
    one.state.gate = gate::wanted;
    EXPECT(one.state.read_lock.acquire());
    std::thread waiter([&, number = fd] { gate::consent(one.connection, number); });
    usleep(100000); // until it waits
    (void)table::take(fd);
    one.state.read_lock.release();
    waiter.join();
    EXPECT_EQ(one.state.gate.load() & gate::careful, 0U);
    int without_delay = 1;
    socklen_t length = sizeof(without_delay);
    EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &without_delay, &length), 0);
    EXPECT_EQ(without_delay, 0);
    EXPECT_EQ(one.connection.in_ring().wake.consent.load(), static_cast<uint32_t>(path::withheld));
    path::unmap_segment(one.connection.segment);
    close(fd);
    close(peer);
}

// It has found the connection before another thread closed it, and counts itself behind that.
void test_a_sleeper_of_a_closed_connection_is_not_one_less_of_the_next() {
    ConnectionState* const first = new_state();
    EXPECT(first != nullptr);
    release_state(first);
    first->sleepers.fetch_add(1);
    ConnectionState* const next = new_state();
    EXPECT(next != nullptr);
    first->sleepers.fetch_sub(1);
    EXPECT_EQ(next->sleepers.load(), 0U);
    release_state(next);
}

// A set as the calls of the program know it.
class Set {
  public:
    Set() : fd_(epoll_create1(EPOLL_CLOEXEC)), set_(EpollSet::make(fd_)) {
        EXPECT(set_ != nullptr);
        uintptr_t before = 0;
        EXPECT(table::put(fd_, reinterpret_cast<uintptr_t>(set_) | table::set_bit, before));
    }
    Set(const Set&) = delete;
    Set& operator=(const Set&) = delete;
    ~Set() { close(); }
    void close() {
        if (fd_ >= 0) {
            (void)table::take(fd_);
            set_->drop_number();
            ::close(std::exchange(fd_, -1));
        }
    }
    int add(int fd) {
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.fd = fd;
        return set_->control(fd_, EPOLL_CTL_ADD, fd, &event);
    }
    [[nodiscard]] int fd() const { return fd_; }
    [[nodiscard]] EpollSet* get() const { return set_; }

  private:
    int fd_;
    EpollSet* set_;
};

// It has found the set before another thread closed it.
void test_a_call_for_a_closed_set_is_not_one_for_the_next() {
    Set first;
    EpollSet* const found = first.get();
    const int number = first.fd();
    const int before = dup(number); // the next one gets another number
    first.close();
    const int taken = dup(before);
    EXPECT_EQ(taken, number);
    Set next;
    EXPECT(next.get() == found);
    EXPECT(next.fd() != number);
    const auto [fd, peer] = preload_test::connected_pair();
    Tracked one(fd);
    EXPECT_EQ(next.add(fd), 0);
    one.state.gate = gate::careful;
    next.get()->convert_number(fd);
    EXPECT(next.get()->has_careful());
    epoll_event event{};
    one.state.broken = true; // an event for the next set only
    EXPECT_EQ(found->wait(number, &event, 1, 0, nullptr), 0);
    EXPECT_EQ(found->number.load(), next.fd());
    EXPECT_EQ(next.get()->wait(next.fd(), &event, 1, 0, nullptr), 1);
    EXPECT_EQ(event.data.fd, fd);
    // And one that changes it.
    const int other = dup(before);
    event.events = EPOLLOUT;
    event.data.fd = fd;
    EXPECT_EQ(found->control(number, EPOLL_CTL_MOD, fd, &event), -1);
    EXPECT_EQ(errno, ENOENT);
    EXPECT_EQ(next.get()->wait(next.fd(), &event, 1, 0, nullptr), 1);
    EXPECT((event.events & EPOLLIN) != 0);
    (void)table::take(fd);
    EXPECT(forget_watches(one.connection));
    path::unmap_segment(one.connection.segment);
    for (const int left : {fd, peer, before, taken, other}) {
        close(left);
    }
}

// Members are converted by an fd that is open.
void test_a_set_goes_on_by_the_duplicate_of_a_closed_fd() {
    Set set;
    const int number = set.fd();
    uintptr_t before = 0;
    const int made = dup(number);
    EXPECT(table::put(made, reinterpret_cast<uintptr_t>(set.get()) | table::set_bit, before));
    set.get()->add_number();
    const auto [fd, peer] = preload_test::connected_pair();
    Tracked one(fd);
    epoll_event event{};
    event.events = EPOLLIN;
    EXPECT_EQ(set.get()->control(made, EPOLL_CTL_ADD, fd, &event), 0);
    (void)table::take(made);
    set.get()->drop_number();
    close(made);
    EXPECT_EQ(set.get()->number.load(), number);
    (void)table::take(fd);
    EXPECT(forget_watches(one.connection));
    path::unmap_segment(one.connection.segment);
    close(fd);
    close(peer);
}

// Frames are read without a wait for threads that only the parent has.
void test_a_set_of_a_child_has_no_sleepers_of_its_parent() {
    const Set set;
    std::thread([&] { set.get()->sleepers().fetch_add(1); }).join();
    set.get()->after_fork();
    EXPECT(!set.get()->is_asleep());
    {
        const EpollSet::Asleep asleep(*set.get());
        set.get()->after_fork(); // by a handler: the thread goes on in the child, too
        EXPECT(set.get()->is_asleep());
    }
    EXPECT(!set.get()->is_asleep());
}

// A set cannot be changed in a handler that has interrupted its functions, and forgets the connection only later.
void test_a_member_of_an_interrupted_set_is_said_to_be_left() {
    Set interrupted;
    Set other;
    const auto [fd, peer] = preload_test::connected_pair();
    Tracked one(fd);
    EXPECT_EQ(interrupted.add(fd), 0);
    EXPECT_EQ(other.add(fd), 0);
    (void)table::take(fd);
    const auto in_handler = [&] { return forget_watches(one.connection); };
    {
        const LocalLock::Hold hold(interrupted.get()->lock());
        EXPECT(hold);
        EXPECT(!in_handler());
    }
    EXPECT(one.connection.watches != nullptr);
    EXPECT(forget_watches(one.connection));
    EXPECT(one.connection.watches == nullptr);
    path::unmap_segment(one.connection.segment);
    close(fd);
    close(peer);
}

// epoll_ctl by one thread, which has found it in the table, and close by another.
void test_a_connection_that_is_closed_meanwhile_is_no_member() {
    Set set;
    const auto [fd, peer] = preload_test::connected_pair();
    Tracked one(fd);
    std::optional<LocalLock::Hold> hold(std::in_place, membership_lock());
    {
        const AtLock adding([&, number = fd] { EXPECT_EQ(set.add(number), 0); });
        EXPECT(!adding.has_ended());
        EXPECT_EQ(table::take(fd), reinterpret_cast<uintptr_t>(&one.connection));
        EXPECT(forget_watches(one.connection));
        hold.reset();
    }
    EXPECT(one.connection.watches == nullptr);
    path::unmap_segment(one.connection.segment);
    close(fd);
    close(peer);
}

void test_a_set_that_is_closed_meanwhile_is_no_member() {
    constexpr int rounds = 20; // either thread may be the first
    Set outer;
    for (int i = 0; i < rounds; ++i) {
        Set inner;
        std::optional<LocalLock::Hold> hold(std::in_place, membership_lock());
        {
            const AtLock adding([&, number = inner.fd()] { EXPECT_EQ(outer.add(number), 0); });
            const AtLock closing([&] { inner.close(); });
            hold.reset();
        }
        EXPECT(!outer.get()->has_careful());
    }
}

// By a signal handler that has interrupted code which looks for a connection's memberships.
void test_memberships_do_not_change_below_the_code_that_reads_them() {
    Set set;
    Set other;
    const auto [fd, peer] = preload_test::connected_pair();
    Tracked one(fd);
    EXPECT_EQ(set.add(fd), 0);
    const Watch* const only = one.connection.watches;
    const auto in_handler = [&, number = fd] {
        EXPECT_EQ(other.add(number), 0); // as far as the kernel is concerned
        EXPECT(one.connection.watches == only);
        EXPECT(!forget_watches(one.connection));
        EXPECT(!set.get()->forget(number, one.connection));
        EXPECT(one.connection.watches == only);
    };
    {
        const LocalLock::Hold hold(membership_lock());
        EXPECT(hold);
        in_handler();
    }
    (void)table::take(fd);
    EXPECT(forget_watches(one.connection));
    EXPECT(one.connection.watches == nullptr);
    path::unmap_segment(one.connection.segment);
    close(fd);
    close(peer);
}

// A signal handler that has interrupted the set's functions waits in it.
void test_a_wait_within_an_interrupted_set_is_one() {
    Set set;
    const auto [fd, peer] = preload_test::connected_pair();
    Tracked one(fd);
    EXPECT_EQ(set.add(fd), 0);
    one.state.gate = gate::careful;
    set.get()->convert_number(fd);
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = ends[0];
    EXPECT_EQ(epoll_ctl(set.fd(), EPOLL_CTL_ADD, ends[0], &event), 0);
    std::array<epoll_event, 4> events{};
    const auto in_handler = [&](int64_t timeout_ns) {
        return set.get()->wait(set.fd(), events.data(), static_cast<int>(events.size()), timeout_ns, nullptr);
    };
    {
        const LocalLock::Hold hold(set.get()->lock());
        EXPECT(hold);
        EXPECT_EQ(in_handler(0), 0);
        EXPECT_EQ(in_handler(1000), 0); // shorter than a millisecond
        std::thread writer([&, waiter = gettid()] {
            await_thread_asleep(waiter);
            EXPECT_EQ(write(ends[1], "x", 1), 1);
        });
        EXPECT_EQ(in_handler(-1), 1);
        writer.join();
        EXPECT_EQ(events[0].data.fd, ends[0]);
        // Bytes in memory, and then a frame, which the peer sends because it is asked to.
        path::Direction& in = one.connection.in_ring();
        in.writer.head = 1;
        EXPECT_EQ(in_handler(-1), 2);
        EXPECT_EQ(events[0].data.fd, fd);
        EXPECT_EQ(events[0].events, uint32_t{EPOLLIN});
        in.reader.tail = 1;
        char byte = 0;
        EXPECT_EQ(read(ends[0], &byte, 1), 1);
        std::thread sender([&, number = peer, waiter = gettid()] {
            await_thread_asleep(waiter);
            EXPECT_EQ(in.wake.data_wanted.load(), uint64_t{path::by_frame});
            EXPECT_EQ(send(number, "f", 1, 0), 1);
        });
        EXPECT_EQ(in_handler(-1), 1);
        sender.join();
        EXPECT_EQ(events[0].data.fd, fd);
    }
    one.state.broken = true;
    EXPECT_EQ(in_handler(0), 1); // the handler has consumed the kernel's edge
    EXPECT_EQ(events[0].data.fd, fd);
    (void)table::take(fd);
    EXPECT(forget_watches(one.connection));
    path::unmap_segment(one.connection.segment);
    for (const int left : {fd, peer, ends[0], ends[1]}) {
        close(left);
    }
}

// A thread that waits reads the segment of a connection without a lock, while others may close any number of them.
void test_a_segment_can_be_read_after_the_end_however_many_have_ended() {
    constexpr size_t many = 1100;
    std::vector<path::Segment*> segments;
    for (size_t i = 0; i < many; ++i) {
        segments.push_back(make_segment());
    }
    for (path::Segment* segment : segments) {
        path::unmap_segment(segment);
    }
    uint64_t sum = 0;
    for (const path::Segment* segment : segments) {
        sum += segment->direction[0].writer.head.load();
    }
    EXPECT_EQ(sum, 0U);
    path::Segment* const again = make_segment();
    EXPECT(std::find(segments.begin(), segments.end(), again) != segments.end());
    path::unmap_segment(again);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_a_connection_that_is_closed_meanwhile_does_not_consent),
        FABTEST(test_a_sleeper_of_a_closed_connection_is_not_one_less_of_the_next),
        FABTEST(test_a_call_for_a_closed_set_is_not_one_for_the_next),
        FABTEST(test_a_set_goes_on_by_the_duplicate_of_a_closed_fd),
        FABTEST(test_a_set_of_a_child_has_no_sleepers_of_its_parent),
        FABTEST(test_a_member_of_an_interrupted_set_is_said_to_be_left),
        FABTEST(test_a_connection_that_is_closed_meanwhile_is_no_member),
        FABTEST(test_a_set_that_is_closed_meanwhile_is_no_member),
        FABTEST(test_memberships_do_not_change_below_the_code_that_reads_them),
        FABTEST(test_a_wait_within_an_interrupted_set_is_one),
        FABTEST(test_a_segment_can_be_read_after_the_end_however_many_have_ended),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
