// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Writers that find no space, or too little, and how they hear of it.
#include "preload/test/calls/calls.hpp"
#include "rsockets/test/asleep.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <thread>
#include <vector>

#include <pthread.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

using namespace calls;

namespace {

constexpr size_t kernel_takes = 1000000; // of a connection that nobody reads
constexpr size_t nobody_takes = size_t{16} << 20;

// Writes until there is no space. Returns how many bytes.
size_t fill(int fd) {
    static const std::vector<char> block(100000);
    size_t total = 0;
    for (ssize_t n = 0; (n = send(fd, block.data(), block.size(), MSG_DONTWAIT)) > 0;) {
        total += static_cast<size_t>(n);
    }
    MUST(errno == EAGAIN);
    return total;
}

void drain(int fd, size_t count) {
    std::vector<char> got(count);
    MUST(recv(fd, got.data(), count, MSG_WAITALL) == static_cast<ssize_t>(count));
}

void drain_what_is_there(int fd) {
    std::vector<char> got(100000);
    while (recv(fd, got.data(), got.size(), MSG_DONTWAIT) > 0) {
    }
}

int set_with(int fd, uint32_t events) {
    const int set = epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{};
    event.events = events;
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    return set;
}

uint32_t await_events(int set) {
    constexpr int timeout_ms = 20000;
    std::array<epoll_event, 4> events{}; // more than there are members
    return epoll_wait(set, events.data(), events.size(), timeout_ms) == 1 ? events[0].events : 0;
}

// Ready for the test; an edge for the space that there is at first was told.
Pair full_pair_in(int& set, size_t& sent) {
    const Pair one = pair();
    exchange(one.client, one.server);
    alarm(60);
    set = set_with(one.client, EPOLLIN | EPOLLOUT | EPOLLET);
    MUST((await_events(set) & EPOLLOUT) != 0);
    sent = fill(one.client);
    return one;
}

} // namespace

// What is told of bytes must not be taken for what will be told of space.
CALLS_CASE(an_edge_for_space_follows_one_for_bytes) {
    int set = -1;
    size_t sent = 0;
    const Pair one = full_pair_in(set, sent);
    MUST(send(one.server, "x", 1, 0) == 1);
    for (uint32_t events = 0; (events & EPOLLIN) == 0;) {
        events = await_events(set);
        MUST(events != 0);
        if ((events & EPOLLOUT) != 0) {
            sent += fill(one.client); // there was space once more
        }
    }
    drain(one.client, 1);
    drain(one.server, sent);
    SAY((await_events(set) & EPOLLOUT) != 0);
    close(set);
    close_all(one);
}

// The one that hears of space fills the connection, and does not come back.
CALLS_CASE(each_thread_of_a_set_hears_of_space) {
    int set = -1;
    size_t sent = 0;
    const Pair one = full_pair_in(set, sent);
    std::atomic<int> heard{0};
    const auto hear = [&] {
        MUST((await_events(set) & EPOLLOUT) != 0);
        (void)fill(one.client);
        ++heard;
    };
    std::thread first(hear);
    std::thread second(hear);
    while (heard < 2) {
        pollfd unread{one.server, POLLIN, 0};
        (void)poll(&unread, 1, 10);
        drain_what_is_there(one.server);
    }
    first.join();
    second.join();
    SAY(heard.load());
    close(set);
    close_all(one);
}

// It has all of it in the kernel, though the reader stops in the middle.
CALLS_CASE(a_writer_goes_on_when_some_of_it_is_read) {
    constexpr size_t some = 100000;
    const Pair one = pair();
    exchange(one.client, one.server);
    alarm(60);
    std::vector<char> block(kernel_takes);
    std::thread reader([&] { drain(one.server, block.size()); });
    MUST(send(one.client, block.data(), block.size(), 0) == static_cast<ssize_t>(block.size()));
    reader.join();
    std::thread writer([&] { SAY(send(one.client, block.data(), block.size(), 0)); });
    drain(one.server, some);
    writer.join();
    drain(one.server, kernel_takes - some);
    close_all(one);
}

// A child has the connection as well, and does nothing with it.
CALLS_CASE(a_set_hears_of_space_beside_a_child_though_nobody_reads) {
    const Pair one = pair();
    exchange(one.client, one.server);
    alarm(60);
    const pid_t child = fork();
    if (child == 0) {
        for (;;) {
            pause();
        }
    }
    const int set = set_with(one.client, EPOLLOUT);
    const std::vector<char> block(kernel_takes);
    for (size_t sent = 0; sent < block.size();) {
        const ssize_t n = send(one.client, block.data() + sent, block.size() - sent, MSG_DONTWAIT);
        if (n < 0) {
            MUST(await_events(set) != 0);
        } else {
            sent += static_cast<size_t>(n);
        }
    }
    drain(one.server, block.size());
    say("all of it came");
    kill(child, SIGKILL);
    MUST(waitpid(child, nullptr, 0) == child);
    close(set);
    close_all(one);
}

// To a peer that has shut down its own direction, and is slow.
CALLS_CASE(a_writer_sleeps_while_a_half_closed_peer_does_not_read) {
    constexpr timespec while_it_sleeps{0, 300000000};
    constexpr long little_ns = 50000000;
    const Pair one = pair();
    exchange(one.client, one.server);
    alarm(60);
    MUST(shutdown(one.client, SHUT_WR) == 0);
    char byte = 0;
    MUST(recv(one.server, &byte, 1, 0) == 0);
    const std::vector<char> block(nobody_takes);
    std::atomic<long> writer_id{0};
    std::thread writer([&] {
        writer_id = syscall(SYS_gettid);
        SAY(send(one.server, block.data(), block.size(), 0));
    });
    while (writer_id == 0) {
        std::this_thread::yield();
    }
    await_thread_asleep(writer_id);
    clockid_t clock{};
    timespec before{};
    timespec after{};
    MUST(pthread_getcpuclockid(writer.native_handle(), &clock) == 0);
    MUST(clock_gettime(clock, &before) == 0);
    nanosleep(&while_it_sleeps, nullptr);
    MUST(clock_gettime(clock, &after) == 0);
    SAY((after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec < little_ns);
    drain(one.client, block.size());
    writer.join();
    close_all(one);
}

// More of them than the library passes to the kernel at once.
CALLS_CASE(many_buffers_are_moved_by_one_call) {
    constexpr size_t each = 10;
    std::array<char, 100 * each> bytes{};
    std::array<iovec, 100> parts{};
    for (size_t i = 0; i < parts.size(); ++i) {
        parts[i] = {bytes.data() + i * each, each};
    }
    const Pair one = pair();
    exchange(one.client, one.server);
    alarm(60);
    for (int i = 0; i < 2; ++i) { // the second time by the kernel
        SAY(writev(one.server, parts.data(), parts.size()));
        MUST(recv(one.client, bytes.data(), bytes.size(), MSG_PEEK | MSG_WAITALL) ==
             static_cast<ssize_t>(bytes.size()));
        SAY(readv(one.client, parts.data(), parts.size()));
        if (i == 0) {
            MUST(shutdown(one.client, SHUT_WR) == 0);
            MUST(recv(one.server, bytes.data(), 1, 0) == 0);
        }
    }
    close_all(one);
}

// The next message would follow on half of one.
CALLS_CASE(several_messages_end_with_half_of_one) {
    std::vector<char> much(nobody_takes);
    std::array<char, 10> little{};
    std::array<iovec, 2> parts{{{much.data(), much.size()}, {little.data(), little.size()}}};
    std::array<mmsghdr, 2> messages{};
    for (size_t i = 0; i < messages.size(); ++i) {
        messages[i].msg_hdr.msg_iov = &parts[i];
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    const Pair one = pair();
    exchange(one.client, one.server);
    alarm(60);
    SAY(sendmmsg(one.client, messages.data(), messages.size(), MSG_DONTWAIT));
    SAY(messages[0].msg_len > 0 && messages[0].msg_len < much.size());
    drain(one.server, messages[0].msg_len);
    pollfd nothing{one.server, POLLIN, 0};
    SAY(poll(&nothing, 1, 0));
    close_all(one);
}
