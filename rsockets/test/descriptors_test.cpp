// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Descriptors of a process that uses sockets: none but the program's own is open in a program that it executes, and the
// sockets below connections are found without a look at all of them.
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <rdma/fabric.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "rsockets/test/sockets.hpp"

namespace {
std::atomic<int> names_asked{0};
std::atomic<int> sockets_made{0};
std::atomic<int> sockets_left{INT_MAX}; // then there are no descriptors any more
} // namespace

// libfabric's and the provider's way to the name of a socket.
extern "C" __attribute__((visibility("default"))) int getpeername(int fd, sockaddr* name, socklen_t* length) {
    ++names_asked;
    return static_cast<int>(syscall(SYS_getpeername, fd, name, length));
}

// The library's way to a socket of the kernel's.
extern "C" __attribute__((visibility("default"))) int socket(int domain, int type, int protocol) {
    ++sockets_made;
    if (--sockets_left < 0) {
        errno = EMFILE;
        return -1;
    }
    return static_cast<int>(syscall(SYS_socket, domain, type, protocol));
}

namespace {

using namespace fabtests;
using namespace rsocket_test;

constexpr int most_numbers = 4096;

std::set<int> inheritable() {
    std::set<int> found;
    for (int fd = 0; fd < most_numbers; ++fd) {
        if (const int flags = fcntl(fd, F_GETFD); flags >= 0 && (flags & FD_CLOEXEC) == 0) {
            found.insert(fd);
        }
    }
    return found;
}

// libfabric makes some without close-on-exec, which the provider sets as soon as it has them: perhaps on another
// thread, just now.
bool none_is_inheritable_but(const std::set<int>& before) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(patience(2000));
    while (inheritable() != before) {
        if (std::chrono::steady_clock::now() >= end) {
            return false;
        }
        std::this_thread::yield();
    }
    return true;
}

// A server of the kernel's, which never answers a handshake.
class Silent {
  public:
    Silent() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        const sockaddr_in any = loopback(0);
        EXPECT_EQ(::bind(fd_, reinterpret_cast<const sockaddr*>(&any), sizeof(any)), 0);
        EXPECT_EQ(::listen(fd_, 5), 0);
    }
    Silent(const Silent&) = delete;
    Silent& operator=(const Silent&) = delete;
    ~Silent() { ::close(fd_); }
    [[nodiscard]] uint16_t port() const {
        sockaddr_in name{};
        socklen_t length = sizeof(name);
        EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&name), &length), 0);
        return ntohs(name.sin_port);
    }

  private:
    int fd_;
};

Number made() { return Number(rsocket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

// Of those that have a number, which is the program's to decide on, each has asked for it.
void test_no_descriptor_is_inherited_by_an_executed_program() {
    const std::set<int> before = inheritable();
    const Number from = made();
    const sockaddr_in any = loopback(0);
    EXPECT_EQ(rbind(from, reinterpret_cast<const sockaddr*>(&any), sizeof(any)), 0);
    EXPECT_EQ(rlisten(from, 10), 0);
    EXPECT(none_is_inheritable_but(before));
    std::vector<Number> numbers;
    for (int i = 0; i < 5; ++i) {
        Number client = made();
        const sockaddr_in to = loopback(port_of(from));
        EXPECT_EQ(rconnect(client, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
        numbers.push_back(std::move(client));
        numbers.emplace_back(raccept4(from, nullptr, nullptr, SOCK_CLOEXEC));
    }
    EXPECT(none_is_inheritable_but(before));
    const Silent silent;
    const Number connecting(rsocket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const sockaddr_in to = loopback(silent.port());
    EXPECT_EQ(rconnect(connecting, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), -1);
    EXPECT_EQ(errno, EINPROGRESS);
    const Number set(repoll_create(EPOLL_CLOEXEC));
    EXPECT(none_is_inheritable_but(before));
}

void keep_alive(int fd) {
    const int on = 1;
    const int time = 50;
    EXPECT_EQ(rsetsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on)), 0);
    for (const int name : {TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT}) {
        EXPECT_EQ(rsetsockopt(fd, IPPROTO_TCP, name, &time, sizeof(time)), 0);
    }
}

// Names that are asked for while one more connection is made and has keepalive set.
int names_for_one_more(int from, std::vector<Ends>& all) {
    const int before = names_asked.load();
    Number client = connected_to(port_of(from));
    all.push_back({std::move(client), Number(raccept(from, nullptr, nullptr))});
    keep_alive(all.back().client);
    keep_alive(all.back().server);
    return names_asked.load() - before;
}

void test_keepalive_costs_the_same_however_many_connections_there_are() {
    const Number from = listener();
    std::vector<Ends> all;
    (void)names_for_one_more(from, all);
    const int few = names_for_one_more(from, all);
    while (all.size() < 30) {
        (void)names_for_one_more(from, all);
    }
    const int many = names_for_one_more(from, all);
    EXPECT(many <= few + 4); // a thread of ours may be at one, too
    EXPECT(many <= 40);
}

// A server does so for each connection that it accepts.
void test_options_that_were_set_before_need_no_socket_of_the_kernels() {
    const Number first = made();
    keep_alive(first);
    const Number second = made();
    const int before = sockets_made.load();
    keep_alive(second);
    EXPECT_EQ(sockets_made.load(), before);
    int got = 0;
    socklen_t length = sizeof(got);
    EXPECT_EQ(rgetsockopt(second, IPPROTO_TCP, TCP_KEEPCNT, &got, &length), 0);
    EXPECT_EQ(got, 50);
}

// As the kernel's bind does: what follows a bind that has succeeded must not need another descriptor.
void test_binding_to_an_ipv6_address_makes_the_socket_ipv6_only() {
    const Number bound(rsocket(AF_INET6, SOCK_STREAM, 0));
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_loopback;
    sockets_left = 1;
    const int ret = rbind(bound, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    const int error = errno;
    sockets_left = INT_MAX;
    if (ret != 0 && (error == EADDRNOTAVAIL || error == EAFNOSUPPORT)) {
        throw Skip("there is no IPv6");
    }
    EXPECT_EQ(ret, 0);
    int only = 0;
    socklen_t length = sizeof(only);
    EXPECT_EQ(rgetsockopt(bound, IPPROTO_IPV6, IPV6_V6ONLY, &only, &length), 0);
    EXPECT_EQ(only, 1);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_no_descriptor_is_inherited_by_an_executed_program),
        FABTEST(test_binding_to_an_ipv6_address_makes_the_socket_ipv6_only),
        FABTEST(test_options_that_were_set_before_need_no_socket_of_the_kernels),
        FABTEST(test_keepalive_costs_the_same_however_many_connections_there_are),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
