// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Close-on-exec of a queue's fds: the other end of a socket pair is found wherever the kernel has put it.
#include "prov/rstream/core_descriptors.hpp"

#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/descriptor.hpp"
#include "fabtests/common/test.hpp"

namespace {

using base::Descriptor;
using namespace fabtests;

bool closes_on_exec(const Descriptor& one) { return (fcntl(one.get(), F_GETFD) & FD_CLOEXEC) != 0; }

// The wait fd of a queue: an epoll set with one end of a socket pair.
Descriptor queue_of(const Descriptor& member) {
    Descriptor set(epoll_create1(0));
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = member.get();
    EXPECT_EQ(epoll_ctl(set.get(), EPOLL_CTL_ADD, member.get(), &event), 0);
    return set;
}

void expect_closed_with_its_queue(const Descriptor& member, const Descriptor& other) {
    EXPECT(!closes_on_exec(member) && !closes_on_exec(other));
    const Descriptor set = queue_of(member);
    (void)rstream::close_queue_on_exec(set.get());
    EXPECT(closes_on_exec(set));
    EXPECT(closes_on_exec(member));
    EXPECT(closes_on_exec(other));
}

// At a number that no other fd is near.
Descriptor moved(Descriptor from, int to) { return Descriptor(fcntl(from.get(), F_DUPFD, to)); }

struct Pair {
    Descriptor first;
    Descriptor second;
};

Pair pair() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    return {Descriptor(fds[0]), Descriptor(fds[1])};
}

void test_other_end_has_the_next_number() {
    const Pair one = pair();
    expect_closed_with_its_queue(one.first, one.second);
}

// The first end has filled a gap far below the fds of a program that has many.
void test_other_end_is_far_above() {
    Pair one = pair();
    one.second = moved(std::move(one.second), 700);
    std::vector<Descriptor> between;
    for (int i = 0; i < 100; ++i) {
        between.emplace_back(open("/dev/null", O_RDONLY));
    }
    expect_closed_with_its_queue(one.first, one.second);
    for (const Descriptor& each : between) {
        EXPECT(!closes_on_exec(each));
    }
}

// Another thread has closed an fd between the two.
void test_other_end_is_below() {
    Pair one = pair();
    one.first = moved(std::move(one.first), 500);
    expect_closed_with_its_queue(one.first, one.second);
}

// Two ends whose inodes are not neighbours: another process has made a socket between, here another connection.
void test_other_end_has_another_inode() {
    const Descriptor listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    socklen_t length = sizeof(sa_family_t); // the kernel chooses the name
    EXPECT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&name), length), 0);
    EXPECT_EQ(listen(listener.get(), 1), 0);
    length = sizeof(name);
    EXPECT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&name), &length), 0);
    const Descriptor client(socket(AF_UNIX, SOCK_STREAM, 0));
    EXPECT_EQ(connect(client.get(), reinterpret_cast<sockaddr*>(&name), length), 0);
    Pair between = pair();
    between.first = moved(std::move(between.first), 300);
    const Descriptor server(accept(listener.get(), nullptr, nullptr));
    expect_closed_with_its_queue(client, server);
    EXPECT(!closes_on_exec(between.first) && !closes_on_exec(between.second));
}

// What is next to an end without its other one, which is closed, is the program's.
void test_neighbours_are_left_alone() {
    Pair one = pair();
    one.second.reset();
    const Pair other = pair();
    const Descriptor set = queue_of(one.first);
    (void)rstream::close_queue_on_exec(set.get());
    EXPECT(closes_on_exec(one.first));
    EXPECT(!closes_on_exec(other.first) && !closes_on_exec(other.second));
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_other_end_has_the_next_number),
        FABTEST(test_other_end_is_far_above),
        FABTEST(test_other_end_is_below),
        FABTEST(test_other_end_has_another_inode),
        FABTEST(test_neighbours_are_left_alone),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
