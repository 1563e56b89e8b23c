// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A listener of the kernel's on a free port of the loopback address. Each function throws as EXPECT does.
#pragma once

#include <cstdint>
#include <utility>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fabtests/common/test.hpp"

namespace preload_test {

class Listener {
  public:
    explicit Listener(int backlog = 1) : Listener(backlog, [](int) {}) {}
    // prepare(fd): before it is bound.
    template <class Prepare> Listener(int backlog, const Prepare& prepare) {
        EXPECT(fd_ >= 0);
        prepare(fd_);
        address_.sin_family = AF_INET;
        address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t length = sizeof(address_);
        EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&address_), length), 0);
        EXPECT_EQ(::listen(fd_, backlog), 0);
        EXPECT_EQ(::getsockname(fd_, reinterpret_cast<sockaddr*>(&address_), &length), 0);
    }
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;
    ~Listener() { ::close(fd_); }

    [[nodiscard]] int fd() const { return fd_; }
    [[nodiscard]] uint16_t port() const { return ntohs(address_.sin_port); }
    // Connects a socket, and returns it.
    int connect(int fd) const {
        EXPECT(fd >= 0);
        EXPECT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&address_), sizeof(address_)), 0);
        return fd;
    }
    [[nodiscard]] int connect() const { return connect(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }
    [[nodiscard]] int accept() const {
        const int fd = ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
        EXPECT(fd >= 0);
        return fd;
    }

  private:
    int fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address_{};
};

// Two connected sockets, which the caller closes: the one that has connected, and the one that was accepted.
inline std::pair<int, int> connected_pair() {
    const Listener listener;
    const int connected = listener.connect();
    return {connected, listener.accept()};
}

} // namespace preload_test
