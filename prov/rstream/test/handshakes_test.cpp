// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Which of the kernel's sockets in a core's epoll set are handshakes, and what becomes of them.
#include "prov/rstream/handshakes.hpp"

#include <cerrno>
#include <string>

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/descriptor.hpp"
#include "fabtests/common/test.hpp"

namespace {

using namespace fabtests;
using rstream::Handshakes;
using std::chrono::milliseconds;

// Which of them something wakes for; the sockets of a core with one listener.
struct Core {
    Core() : listener(socket(AF_INET, SOCK_STREAM, 0)) {
        sockaddr_in loopback{};
        loopback.sin_family = AF_INET;
        loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        EXPECT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&loopback), sizeof(loopback)), 0);
        EXPECT_EQ(listen(listener.get(), 8), 0);
        socklen_t length = sizeof(name);
        EXPECT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&name), &length), 0);
        add(signal.get());
        add(listener.get());
    }
    void add(int fd) const {
        epoll_event event{};
        EXPECT_EQ(epoll_ctl(set.get(), EPOLL_CTL_ADD, fd, &event), 0);
    }
    // The core takes the next who connects.
    [[nodiscard]] base::Descriptor take() const {
        base::Descriptor taken(accept(listener.get(), nullptr, nullptr));
        EXPECT(taken.get() >= 0);
        add(taken.get());
        return taken;
    }
    [[nodiscard]] base::Descriptor visit() const {
        base::Descriptor visitor(socket(AF_INET, SOCK_STREAM, 0));
        EXPECT_EQ(connect(visitor.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
        return visitor;
    }

    base::Descriptor set{epoll_create1(0)};
    base::Descriptor signal{eventfd(0, 0)};
    base::Descriptor listener;
    sockaddr_in name{};
};

bool blocks(const base::Descriptor& fd) { return (fcntl(fd.get(), F_GETFL) & O_NONBLOCK) == 0; }

// What the core would read now.
ssize_t read_from(const base::Descriptor& fd) {
    char byte = 0;
    return recv(fd.get(), &byte, 1, MSG_DONTWAIT);
}

void say(const base::Descriptor& visitor, const base::Descriptor& to, const std::string& text) {
    EXPECT_EQ(send(visitor.get(), text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
    pollfd one{to.get(), POLLIN, 0};
    EXPECT_EQ(poll(&one, 1, 10000), 1);
}

const Handshakes::Time start{std::chrono::seconds(1000)};

void test_what_was_accepted_is_found_and_does_not_block() {
    const Core core;
    Handshakes handshakes(core.set.get(), milliseconds(100), 8);
    EXPECT(handshakes.check(start) == Handshakes::Found::same);
    EXPECT(handshakes.listening());
    EXPECT(!handshakes.deadline());
    const base::Descriptor visitor = core.visit();
    const base::Descriptor taken = core.take();
    EXPECT(handshakes.check(start) == Handshakes::Found::changed);
    EXPECT_EQ(handshakes.count(), 1U);
    EXPECT(!blocks(taken));
    EXPECT(handshakes.deadline() == start + milliseconds(100));
    EXPECT(handshakes.check(start) == Handshakes::Found::same);
    EXPECT(blocks(core.listener)); // is not one
}

void test_what_the_core_has_let_go_of_is_left_alone() {
    const Core core;
    Handshakes handshakes(core.set.get(), milliseconds(100), 8);
    const base::Descriptor visitor = core.visit();
    const base::Descriptor taken = core.take();
    (void)handshakes.check(start);
    EXPECT_EQ(epoll_ctl(core.set.get(), EPOLL_CTL_DEL, taken.get(), nullptr), 0);
    EXPECT(handshakes.check(start) == Handshakes::Found::changed);
    handshakes.end_all();
    EXPECT_EQ(handshakes.count(), 0U);
    EXPECT_EQ(read_from(taken), -1);
}

void test_a_number_that_stands_for_another_socket_is_another_handshake() {
    const Core core;
    Handshakes handshakes(core.set.get(), milliseconds(100), 8);
    const base::Descriptor first = core.visit();
    const base::Descriptor second = core.visit();
    const int number = [&] {
        const base::Descriptor taken = core.take();
        (void)handshakes.check(start);
        return taken.get();
    }();
    const base::Descriptor taken = core.take();
    EXPECT_EQ(taken.get(), number);
    EXPECT(handshakes.check(start + milliseconds(70)) == Handshakes::Found::changed);
    EXPECT(!blocks(taken));
    handshakes.end_late(start + milliseconds(100));
    EXPECT_EQ(read_from(taken), -1);
    handshakes.end_late(start + milliseconds(170));
    EXPECT_EQ(read_from(taken), 0);
}

void test_who_is_late_is_ended_with_all_it_has_said() {
    const Core core;
    Handshakes handshakes(core.set.get(), milliseconds(100), 8);
    const base::Descriptor visitor = core.visit();
    const base::Descriptor taken = core.take();
    (void)handshakes.check(start);
    say(visitor, taken, std::string(10000, 'x'));
    handshakes.end_late(start + milliseconds(99));
    EXPECT_EQ(read_from(taken), 1);
    handshakes.end_late(start + milliseconds(100));
    EXPECT_EQ(read_from(taken), 0);
    EXPECT(!handshakes.deadline()); // it is the core's turn
    EXPECT_EQ(handshakes.count(), 1U);
}

void test_the_oldest_ends_when_there_are_too_many() {
    const Core core;
    Handshakes handshakes(core.set.get(), milliseconds(100), 2);
    std::vector<base::Descriptor> both;
    for (int i = 0; i < 3; ++i) {
        both.push_back(core.visit());
        both.push_back(core.take());
        (void)handshakes.check(start + milliseconds(i));
    }
    EXPECT_EQ(read_from(both[1]), 0);
    EXPECT_EQ(read_from(both[3]), -1);
    EXPECT_EQ(read_from(both[5]), -1);
    EXPECT(handshakes.deadline() == start + milliseconds(101));
}

void test_nobody_is_accepted_once_listening_has_stopped() {
    const Core core;
    Handshakes handshakes(core.set.get(), milliseconds(100), 2);
    (void)handshakes.check(start);
    const base::Descriptor visitor = core.visit();
    handshakes.stop_listening();
    EXPECT_EQ(accept4(core.listener.get(), nullptr, nullptr, SOCK_NONBLOCK), -1);
    (void)handshakes.check(start);
    EXPECT_EQ(handshakes.count(), 0U); // what has listened is none
}

void test_without_a_descriptor_to_look_with_nothing_is_known() {
    const Core core;
    Handshakes handshakes(core.set.get(), milliseconds(100), 2);
    rlimit usual{};
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &usual), 0);
    rlimit none = usual;
    none.rlim_cur = 0;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    const auto found = handshakes.check(start);
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &usual), 0);
    EXPECT(found == Handshakes::Found::unknown);
    EXPECT(handshakes.check(start) == Handshakes::Found::same);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_what_was_accepted_is_found_and_does_not_block),
        FABTEST(test_what_the_core_has_let_go_of_is_left_alone),
        FABTEST(test_a_number_that_stands_for_another_socket_is_another_handshake),
        FABTEST(test_who_is_late_is_ended_with_all_it_has_said),
        FABTEST(test_the_oldest_ends_when_there_are_too_many),
        FABTEST(test_nobody_is_accepted_once_listening_has_stopped),
        FABTEST(test_without_a_descriptor_to_look_with_nothing_is_known),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
