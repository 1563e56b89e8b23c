// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What a worker does for a connection that its program has closed, when the fabric has failed: the test plays the far
// end, whose record arrives before each of the worker's system calls in turn.
#include "preload/fabric/closed_recovery.hpp"

#include <cstdarg>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fabtests/common/test.hpp" // last: cmocka has macros of plain names
#include "preload/test/listener.hpp"

namespace {

int calls_left = -1; // until `then`; negative: never
std::function<void()> then;

void before_a_call() {
    if (calls_left >= 0 && calls_left-- == 0) {
        then();
    }
}

} // namespace

// In place of libc's, for the code under test, which is linked statically.
extern "C" ssize_t recv(int fd, void* buffer, size_t size, int flags) {
    before_a_call();
    return syscall(SYS_recvfrom, fd, buffer, size, flags, nullptr, nullptr);
}
extern "C" int ioctl(int fd, unsigned long request, ...) noexcept {
    va_list arguments;
    va_start(arguments, request);
    void* argument = va_arg(arguments, void*);
    va_end(arguments);
    before_a_call();
    return static_cast<int>(syscall(SYS_ioctl, fd, request, argument));
}

namespace {

using namespace preload;
using preload::fabric::ClosedRecovery;
using Step = ClosedRecovery::Step;

constexpr uint64_t written = 6000; // by the program
constexpr uint64_t read_before = 1000;

char pattern(uint64_t i) { return static_cast<char>(i * 2654435761U >> 11); }

class Connection {
  public:
    Connection() {
        const int memory = path::open_memory();
        segment_ = path::make_segment(4711, memory);
        close(memory);
        EXPECT(segment_ != nullptr);
        path::Cursor ring;
        for (uint64_t i = 0; i < written; ++i) {
            path::ring_memory(segment_, 0)[ring.offset_of(i)] = static_cast<uint8_t>(pattern(i));
        }
        ring.position = written;
        segment_->direction[0].writer.head = written;
        segment_->direction[0].writer.epoch = 1;
        std::tie(far, own) = preload_test::connected_pair();
        recovery.emplace(*segment_, 0, own, ring, path::Cursor{});
    }
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;
    ~Connection() {
        close(own);
        close(far);
        path::unmap_segment(segment_);
    }

    // The far end's: it has read `read_before` bytes, and has written none to the ring.
    void send_record() const {
        path::Record record;
        record.tail = read_before;
        record.epoch = 1;
        record.followed = 1;
        EXPECT_EQ(send(far, &path::Record::mark, 1, MSG_OOB), 1);
        EXPECT_EQ(send(far, &record, sizeof(record), 0), static_cast<ssize_t>(sizeof(record)));
    }

    // The worker's turns, until it ends or waits for something that does not come.
    Step last_step() {
        for (;;) {
            const Step step = recovery->step();
            constexpr int no_more_comes = 200; // ms
            if (step == Step::done || step == Step::failed) {
                return step;
            }
            pollfd one{own, POLLIN, 0};
            if (step == Step::reading && calls_left < 0 && poll(&one, 1, no_more_comes) == 0) {
                return step;
            }
        }
    }

    void expect_the_rest() const {
        path::Record record;
        EXPECT_EQ(recv(far, &record, sizeof(record), MSG_WAITALL), static_cast<ssize_t>(sizeof(record)));
        EXPECT(record.magic == path::Record::expected_magic);
        EXPECT_EQ(record.head, written);
        std::string rest(written, '\0'); // more than there is
        EXPECT_EQ(recv(far, rest.data(), rest.size(), MSG_WAITALL), static_cast<ssize_t>(written - read_before));
        for (uint64_t i = read_before; i < written; ++i) {
            EXPECT_EQ(rest[i - read_before], pattern(i));
        }
    }

    int own = -1; // whose program has closed it
    int far = -1;
    std::optional<ClosedRecovery> recovery;

  private:
    path::Segment* segment_ = nullptr;
};

// before: the far end sends this in front of its record, which comes before each of the worker's calls in turn.
void expect_the_rest_whenever_the_record_comes(const std::function<void(const Connection&)>& before) {
    constexpr int calls = 16; // more than it takes to wait for the record twice
    for (int number = 0; number < calls; ++number) {
        Connection connection;
        before(connection);
        calls_left = number;
        then = [&] { connection.send_record(); };
        EXPECT(connection.last_step() == Step::done);
        EXPECT(calls_left < 0);
        connection.expect_the_rest();
    }
}

void test_the_record_may_arrive_at_any_moment() {
    expect_the_rest_whenever_the_record_comes([](const Connection&) {});
}

void test_what_is_in_front_of_the_record_is_read() {
    expect_the_rest_whenever_the_record_comes([](const Connection& connection) {
        const std::string unread(100, 'u');
        EXPECT_EQ(send(connection.far, unread.data(), unread.size(), 0), static_cast<ssize_t>(unread.size()));
    });
}

// The last urgent byte of the proof has any value, and stays the last one until the record's.
void test_an_urgent_byte_of_the_same_value_is_no_record() {
    expect_the_rest_whenever_the_record_comes([](const Connection& connection) {
        const std::string unread(sizeof(path::Record), 'u');
        EXPECT_EQ(send(connection.far, &path::Record::mark, 1, MSG_OOB), 1);
        EXPECT_EQ(send(connection.far, unread.data(), unread.size(), 0), static_cast<ssize_t>(unread.size()));
    });
}

// SIOCOUTQ reports for ever what was under way when the far end reset the connection.
void test_a_reset_connection_is_not_awaited() {
    Connection connection;
    const std::string much(size_t{1} << 20, 'm');
    while (send(connection.own, much.data(), much.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
    }
    EXPECT(preload::fabric::is_unacknowledged(connection.own));
    const linger at_once{1, 0};
    EXPECT_EQ(setsockopt(connection.far, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)), 0);
    close(std::exchange(connection.far, -1));
    pollfd one{connection.own, 0, 0};
    EXPECT_EQ(poll(&one, 1, -1), 1); // POLLERR, POLLHUP
    EXPECT(!preload::fabric::is_unacknowledged(connection.own));
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_the_record_may_arrive_at_any_moment),
        FABTEST(test_what_is_in_front_of_the_record_is_read),
        FABTEST(test_an_urgent_byte_of_the_same_value_is_no_record),
        FABTEST(test_a_reset_connection_is_not_awaited),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
