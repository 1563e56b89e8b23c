// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The ways to wait for a byte of one connection and to take it. Each checks that it is told of this connection and of
// nothing else.
#pragma once

#include <array>
#include <cerrno>
#include <cstdint>

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fabtests/common/test.hpp"

namespace wakeup_test {

enum class Way { receive, poll, select, level, edge, one_shot };
inline constexpr std::array all_ways{Way::receive, Way::poll, Way::select, Way::level, Way::edge, Way::one_shot};

class Waiter {
  public:
    // set: one that has the connection as a member already, or -1
    Waiter(Way way, int fd, int set = -1) : way_(way), fd_(fd), set_(set), own_(set < 0 && way >= Way::level) {
        if (own_) {
            set_ = epoll_create1(EPOLL_CLOEXEC);
            control(EPOLL_CTL_ADD);
        }
    }
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;
    ~Waiter() {
        if (own_) {
            close(set_);
        }
    }

    // Blocks until there is a byte, and takes it; -1: something else was told.
    [[nodiscard]] int next() const {
        char byte = 0;
        if (way_ == Way::receive) {
            return recv(fd_, &byte, 1, 0) == 1 ? static_cast<unsigned char>(byte) : -1;
        }
        for (;;) {
            errno = 0;
            if (!wait(-1)) {
                // A child's end while another thread is in fork(), which blocks signals (glibc 2.41): the kernel does
                // so too.
                if (errno == EINTR) {
                    continue;
                }
                return -1;
            }
            const ssize_t n = recv(fd_, &byte, 1, MSG_DONTWAIT);
            if (way_ == Way::one_shot) {
                control(EPOLL_CTL_MOD);
            }
            if (n == 1) {
                return static_cast<unsigned char>(byte);
            }
            // As with the kernel, another thread may have been quicker.
            if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) {
                return -1;
            }
        }
    }
    // True: exactly this connection was told, as readable.
    [[nodiscard]] bool wait(int timeout) const {
        if (way_ == Way::poll) {
            pollfd one{fd_, POLLIN, 0};
            return ::poll(&one, 1, timeout) == 1 && one.revents == POLLIN;
        }
        if (way_ == Way::select) {
            fd_set in;
            FD_ZERO(&in);
            FD_SET(fd_, &in);
            return ::select(fd_ + 1, &in, nullptr, nullptr, nullptr) == 1 && FD_ISSET(fd_, &in);
        }
        std::array<epoll_event, 4> events{};
        return epoll_wait(set_, events.data(), events.size(), timeout) == 1 && events[0].events == EPOLLIN &&
               events[0].data.u64 == data();
    }
    [[nodiscard]] int set() const { return set_; }
    [[nodiscard]] uint64_t data() const { return uint64_t{0x5eed} << 32 | static_cast<unsigned>(fd_); }

  private:
    void control(int operation) const {
        epoll_event event{};
        event.events = EPOLLIN | (way_ == Way::edge       ? uint32_t{EPOLLET}
                                  : way_ == Way::one_shot ? uint32_t{EPOLLONESHOT}
                                                          : 0U);
        event.data.u64 = data();
        EXPECT_EQ(epoll_ctl(set_, operation, fd_, &event), 0);
    }

    const Way way_;
    const int fd_;
    int set_;
    const bool own_;
};

} // namespace wakeup_test
