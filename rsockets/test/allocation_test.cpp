// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Moving bytes takes no memory: a call on a connected socket costs no allocation, and a signal's handler that leaves
// the program within one does not meet an allocator that is locked. And where a call takes memory and gets none, it
// fails, and what it was called on can be used as before.
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <rdma/rsocket.h>
#include <sys/epoll.h>
#include <sys/select.h>

#include "fabtests/common/child.hpp"
#include "fabtests/common/test.hpp"
#include "rsockets/test/fabric_hook.hpp"
#include "rsockets/test/sockets.hpp"

namespace {

thread_local int allocations = 0; // of this thread: the library's own may take what it needs
thread_local int failing = 0;     // the allocation of this number from now on fails; 0: none

// By pointers: compilers and analyzers would take malloc and free for the wrong partners of new and delete.
void* (*volatile take)(size_t) = malloc;
void (*volatile give)(void*) = free;

} // namespace

void* operator new(size_t size) {
    ++allocations;
    if (failing > 0 && --failing == 0) {
        throw std::bad_alloc();
    }
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

// ---- no memory

// Whether an allocation of the call has failed.
bool fails_allocation(int number, const std::function<void()>& call) {
    failing = number;
    call();
    return std::exchange(failing, 0) == 0;
}

int begin_to_connect(int fd, uint16_t port) {
    const sockaddr_in to = loopback(port);
    return rconnect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0 ? 0 : errno;
}

Number calling_socket() { return Number(rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)); }

bool ready(int fd, short events, int time) {
    pollfd one{fd, events, 0};
    return rpoll(&one, 1, time) == 1;
}

// What the connect that is under way ends in; 0 if well.
int outcome(int fd) {
    EXPECT(ready(fd, POLLOUT, patience(10000)));
    int error = -1;
    socklen_t length = sizeof(error);
    EXPECT_EQ(rgetsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length), 0);
    return error;
}

Number accepted_from(int from) {
    EXPECT(ready(from, POLLIN, patience(10000)));
    return Number(raccept(from, nullptr, nullptr));
}

void test_a_connect_without_memory_leaves_the_socket_usable() {
    const Number from = listener();
    const uint16_t port = port_of(from);
    { // what the library keeps once it has connected
        const Number client = connected_to(port);
        const Number server(raccept(from, nullptr, nullptr));
    }
    int failures = 0;
    for (int number = 1;; ++number) {
        const Number fd = calling_socket();
        int error = 0;
        if (!fails_allocation(number, [&] { error = begin_to_connect(fd, port); })) {
            break;
        }
        EXPECT(error == EINPROGRESS || error == ENOMEM);
        if (error == ENOMEM) {
            ++failures;
            EXPECT_EQ(begin_to_connect(fd, port), EINPROGRESS);
        }
        EXPECT_EQ(outcome(fd), 0);
        send_all(fd, "x");
        while (received(accepted_from(from), 1) != "x") { // a connection whose connect has failed is reset
        }
    }
    EXPECT(failures > 0);
}

// The first client is connected, and the second one waits until it is accepted.
void test_an_accept_without_memory_loses_no_connection() {
    bool failed = true;
    for (int number = 1; failed; ++number) {
        const Number from = listener(0);
        const uint16_t port = port_of(from);
        const int before = fabric_hook.requests.load();
        const Number first = connected_to(port);
        send_all(first, "1");
        const Number second = calling_socket();
        EXPECT_EQ(begin_to_connect(second, port), EINPROGRESS);
        await_requests(before + 2);
        EXPECT(ready(from, POLLIN, patience(10000)));
        int fd = -1;
        int error = 0;
        failed = fails_allocation(number, [&] {
            fd = raccept(from, nullptr, nullptr);
            error = errno;
        });
        EXPECT(fd >= 0 || error == ENOMEM);
        const Number server = fd >= 0 ? Number(fd) : accepted_from(from);
        EXPECT_EQ(received(server, 1), "1");
        if (error = outcome(second); error == 0) {
            (void)accepted_from(from);
        } else {
            EXPECT_EQ(error, ECONNREFUSED);
        }
        const Number third = calling_socket();
        EXPECT_EQ(begin_to_connect(third, port), EINPROGRESS);
        EXPECT_EQ(outcome(third), 0);
        EXPECT(accepted_from(from) >= 0);
        EXPECT(failed || number > 1);
    }
}

// The peer has no space for them: closing the socket hands them on, or ends the connection.
void role_closes_with_unsent_bytes(const std::vector<std::string>&) {
    const std::string much(size_t{1} << 20, 'x');
    bool failed = true;
    for (int number = 1; failed; ++number) {
        Ends ends = connected();
        EXPECT_EQ(rfcntl(ends.client, F_SETFL, O_NONBLOCK), 0);
        while (rsend(ends.client, much.data(), much.size(), 0) > 0) {
        }
        failed = fails_allocation(number, [&] { ends.client.close(); });
        EXPECT(failed || number > 1);
    }
}

void test_a_close_without_memory_does_not_end_the_process() { run_in_child("closes_with_unsent_bytes", {}); }

} // namespace

int main(int argc, char** argv) {
    signal(SIGPIPE, SIG_IGN);
    const Role roles[] = {{"closes_with_unsent_bytes", role_closes_with_unsent_bytes}};
    if (const auto status = play_role(argc, argv, roles)) {
        return *status;
    }
    const CMUnitTest tests[] = {
        FABTEST(test_the_counter_counts),
        FABTEST(test_a_receive_of_nothing_takes_no_memory),
        FABTEST(test_a_byte_there_and_back_takes_no_memory),
        FABTEST(test_waiting_in_poll_takes_no_memory),
        FABTEST(test_waiting_in_select_takes_no_memory),
        FABTEST(test_waiting_for_events_takes_no_memory),
        FABTEST(test_a_connect_without_memory_leaves_the_socket_usable),
        FABTEST(test_an_accept_without_memory_loses_no_connection),
        FABTEST(test_a_close_without_memory_does_not_end_the_process),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
