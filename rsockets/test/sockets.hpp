// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// rsockets for tests: numbers that close themselves, and connections within a process, over FABTESTS_NODE.
#pragma once

#include <cerrno>
#include <string>
#include <utility>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <rdma/rsocket.h>

#include "fabtests/common/streams.hpp"
#include "fabtests/common/test.hpp"

namespace rsocket_test {

// A number that is closed at the end.
class Number {
  public:
    explicit Number(int fd = -1) : fd_(fd) { EXPECT(fd >= -1); }
    Number(Number&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Number& operator=(Number&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~Number() { close(); }
    void close() {
        if (fd_ >= 0) {
            rclose(std::exchange(fd_, -1));
        }
    }
    operator int() const { return fd_; } // NOLINT(google-explicit-constructor): it stands for the number

  private:
    int fd_;
};

inline sockaddr_in loopback(uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    EXPECT_EQ(inet_pton(AF_INET, fabtests::node_name().c_str(), &address.sin_addr), 1);
    return address;
}

inline Number listener(int backlog = 4096) {
    Number fd(rsocket(AF_INET, SOCK_STREAM, 0));
    const sockaddr_in any = loopback(0);
    EXPECT_EQ(rbind(fd, reinterpret_cast<const sockaddr*>(&any), sizeof(any)), 0);
    EXPECT_EQ(rlisten(fd, backlog), 0);
    return fd;
}

inline uint16_t port_of(int fd) {
    sockaddr_in address{};
    socklen_t length = sizeof(address);
    EXPECT_EQ(rgetsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
    return ntohs(address.sin_port);
}

inline Number connected_to(uint16_t port) {
    Number fd(rsocket(AF_INET, SOCK_STREAM, 0));
    const sockaddr_in to = loopback(port);
    EXPECT_EQ(rconnect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    return fd;
}

struct Ends {
    Number client;
    Number server;
};

inline Ends connected() {
    const Number from = listener();
    Number client = connected_to(port_of(from));
    return {std::move(client), Number(raccept(from, nullptr, nullptr))};
}

inline void send_all(int fd, const std::string& text) {
    EXPECT_EQ(rsend(fd, text.data(), text.size(), 0), text.size());
}

inline std::string received(int fd, size_t length) {
    std::string text(length, '\0');
    const ssize_t n = rrecv(fd, text.data(), length, MSG_WAITALL);
    text.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return text;
}

} // namespace rsocket_test
