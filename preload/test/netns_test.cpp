// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Connections of another network namespace than that in which the process began. netns_test.sh runs it, with the right
// to make namespaces.
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include "preload/test/pair.hpp"

namespace {

using preload_test::Connected;
using preload_test::Pair;
using preload_test::path_of;

void start_loopback() {
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ifreq request{};
    strcpy(request.ifr_name, "lo");
    EXPECT_EQ(ioctl(fd, SIOCGIFFLAGS, &request), 0);
    request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP);
    EXPECT_EQ(ioctl(fd, SIOCSIFFLAGS, &request), 0);
    close(fd);
}

// This thread is in another namespace as long.
class Elsewhere {
  public:
    Elsewhere() : home_(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC)) {
        EXPECT(home_ >= 0);
        EXPECT_EQ(unshare(CLONE_NEWNET), 0);
        start_loopback();
    }
    Elsewhere(const Elsewhere&) = delete;
    Elsewhere& operator=(const Elsewhere&) = delete;
    ~Elsewhere() {
        (void)setns(home_, CLONE_NEWNET);
        close(home_);
    }

  private:
    int home_;
};

sockaddr_in name_of(int fd) {
    sockaddr_in name{};
    socklen_t length = sizeof(name);
    EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length), 0);
    return name;
}

int bound_to(const sockaddr_in& name) {
    const auto fd = static_cast<int>(syscall(SYS_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); // not the library's
    const int yes = 1;
    EXPECT_EQ(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)), 0);
    EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
    return fd;
}

// A connection of the same addresses here.
class Twin {
  public:
    explicit Twin(const Connected& other) {
        const sockaddr_in accepting = name_of(other.b);
        listener_ = bound_to(accepting);
        EXPECT_EQ(listen(listener_, 1), 0);
        connected_ = bound_to(name_of(other.a));
        EXPECT_EQ(syscall(SYS_connect, connected_, &accepting, sizeof(accepting)), 0);
        accepted_ = static_cast<int>(syscall(SYS_accept4, listener_, nullptr, nullptr, SOCK_CLOEXEC));
        EXPECT(accepted_ >= 0);
    }
    Twin(const Twin&) = delete;
    Twin& operator=(const Twin&) = delete;
    ~Twin() {
        close(accepted_);
        close(connected_);
        close(listener_);
    }

  private:
    int listener_ = -1;
    int connected_ = -1;
    int accepted_ = -1;
};

Connected elsewhere() {
    const Elsewhere other;
    return Connected();
}

// The library looks for the peer's owner in the namespace of its thread, where somebody else's connection can have the
// same addresses: that user would be given this connection's bytes.
void test_a_connection_of_another_namespace_stays_with_the_kernel() {
    const Pair first; // the library's thread begins in this namespace
    const Connected pair = elsewhere();
    const Twin twin(pair);
    for (int i = 0; i < 500; ++i) {
        pair.exchange();
        EXPECT_EQ(path_of(pair.a), 0);
        EXPECT_EQ(path_of(pair.b), 0);
        usleep(1000);
    }
    const Pair last; // others are upgraded as before
}

} // namespace

int main() {
    start_loopback();
    const CMUnitTest tests[] = {
        FABTEST(test_a_connection_of_another_namespace_stays_with_the_kernel),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
