// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Moving bytes takes no memory: a call on a connected socket costs no allocation, and a signal's handler that leaves
// the program within one does not meet an allocator that is locked.
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <new>

#include <poll.h>
#include <rdma/rsocket.h>
#include <sys/epoll.h>
#include <sys/select.h>

#include "fabtests/common/test.hpp"
#include "rsockets/test/sockets.hpp"

namespace {

thread_local int allocations = 0; // of this thread: the library's own may take what it needs

// By pointers: compilers and analyzers would take malloc and free for the wrong partners of new and delete.
void* (*volatile take)(size_t) = malloc;
void (*volatile give)(void*) = free;

} // namespace

void* operator new(size_t size) {
    ++allocations;
    if (void* memory = take(size)) {
        return memory;
    }
    throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { give(memory); }
void operator delete(void* memory, size_t /*size*/) noexcept { give(memory); }

namespace {

using namespace fabtests;
using namespace rsocket_test;

// What is left once each call has been made and has what it keeps.
int allocations_of(const std::function<void()>& calls) {
    calls();
    calls();
    const int before = allocations;
    calls();
    return allocations - before;
}

void test_the_counter_counts() {
    EXPECT_EQ(allocations_of([] { ::operator delete(::operator new(1)); }), 1);
}

void test_a_receive_of_nothing_takes_no_memory() {
    const Ends ends = connected();
    char byte = 0;
    EXPECT_EQ(allocations_of([&] { EXPECT(rrecv(ends.client, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN); }), 0);
}

void test_a_byte_there_and_back_takes_no_memory() {
    const Ends ends = connected();
    char byte = 'x';
    for (const int flags : {0, static_cast<int>(MSG_WAITALL), static_cast<int>(MSG_DONTWAIT)}) {
        const auto receive = [&](int fd) {
            ssize_t n = -1;
            while ((n = rrecv(fd, &byte, 1, flags)) == -1 && errno == EAGAIN) {
            }
            EXPECT_EQ(n, 1);
        };
        EXPECT_EQ(allocations_of([&] {
                      EXPECT_EQ(rsend(ends.client, &byte, 1, 0), 1);
                      receive(ends.server);
                      EXPECT_EQ(rsend(ends.server, &byte, 1, 0), 1);
                      receive(ends.client);
                  }),
                  0);
    }
}

void test_waiting_in_poll_takes_no_memory() {
    const Ends ends = connected();
    char byte = 'x';
    EXPECT_EQ(allocations_of([&] {
                  EXPECT_EQ(rsend(ends.client, &byte, 1, 0), 1);
                  pollfd fd{ends.server, POLLIN, 0};
                  EXPECT_EQ(rpoll(&fd, 1, -1), 1);
                  EXPECT_EQ(rrecv(ends.server, &byte, 1, 0), 1);
                  EXPECT_EQ(rpoll(&fd, 1, 0), 0);
              }),
              0);
}

void test_waiting_in_select_takes_no_memory() {
    const Ends ends = connected();
    char byte = 'x';
    EXPECT_EQ(allocations_of([&] {
                  EXPECT_EQ(rsend(ends.client, &byte, 1, 0), 1);
                  fd_set in;
                  FD_ZERO(&in);
                  FD_SET(ends.server, &in);
                  EXPECT_EQ(rselect(ends.server + 1, &in, nullptr, nullptr, nullptr), 1);
                  EXPECT_EQ(rrecv(ends.server, &byte, 1, 0), 1);
              }),
              0);
}

void test_waiting_for_events_takes_no_memory() {
    const Ends ends = connected();
    const Number set(repoll_create(0));
    epoll_event event{EPOLLIN, {}};
    EXPECT_EQ(repoll_ctl(set, EPOLL_CTL_ADD, ends.server, &event), 0);
    char byte = 'x';
    EXPECT_EQ(allocations_of([&] {
                  EXPECT_EQ(rsend(ends.client, &byte, 1, 0), 1);
                  EXPECT_EQ(repoll_wait(set, &event, 1, -1), 1);
                  EXPECT_EQ(rrecv(ends.server, &byte, 1, 0), 1);
                  EXPECT_EQ(repoll_wait(set, &event, 1, 0), 0);
              }),
              0);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_the_counter_counts),
        FABTEST(test_a_receive_of_nothing_takes_no_memory),
        FABTEST(test_a_byte_there_and_back_takes_no_memory),
        FABTEST(test_waiting_in_poll_takes_no_memory),
        FABTEST(test_waiting_in_select_takes_no_memory),
        FABTEST(test_waiting_for_events_takes_no_memory),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
