// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// TCP sockets of the loopback address, and the ways in which a program waits for one.
#pragma once

#include <cerrno>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include <unistd.h>

#include "util/common/failure.hpp"

namespace path_bench {

// The other process ended, or closed the connection. It may have said why, so its own error is the better one.
struct PeerLost : util::Failure {
    using util::Failure::Failure;
};

// Throws what errno says of a call: PeerLost where the peer is the reason.
[[noreturn]] void fail_call(const char* call);

// The result of a call, or the Failure of errno.
template <class Result> Result checked(const char* call, Result result) {
    if (result < 0) {
        fail_call(call);
    }
    return result;
}

// Of a call that waits: an interruption, as by a debugger, is a wait that found nothing.
template <class Result> Result waited(const char* call, Result result) {
    return result < 0 && errno == EINTR ? 0 : checked(call, result);
}

class Fd {
  public:
    Fd() = default;
    explicit Fd(int fd) : fd_(fd) {}
    Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Fd& operator=(Fd&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    Fd(const Fd&) = delete;
    Fd& operator=(const Fd&) = delete;
    ~Fd() { reset(); }
    void reset() {
        if (fd_ >= 0) {
            ::close(std::exchange(fd_, -1));
        }
    }
    [[nodiscard]] int get() const { return fd_; }

  private:
    int fd_ = -1;
};

struct Listener {
    Listener();
    // Blocking, with TCP_NODELAY.
    [[nodiscard]] Fd accept() const;
    Fd fd;
    uint16_t port = 0;
};
Fd connect_to(uint64_t port);
void set_non_blocking(const Fd& socket);
// Puts a member into an epoll set.
void add_to(const Fd& set, int fd, uint32_t events, uint32_t index);

enum class Wait { block, spin, poll, epoll, epoll_et };
Wait parse_wait(const std::string& word);
const char* name_of(Wait wait);

// One connection, and how its process waits for it.
class Channel {
  public:
    Channel(Fd socket, Wait wait);
    void send(std::span<const char> bytes);
    // At least one byte; zero at the end of the stream.
    size_t receive(std::span<char> bytes);
    // All of them; false at the end of the stream, which must be in front of the first.
    bool receive_all(std::span<char> bytes);
    // The socket, for another way of waiting.
    Fd release() { return std::move(socket_); }

  private:
    void await(bool writable);

    Fd socket_;
    Wait wait_;
    Fd set_; // of epoll
};

} // namespace path_bench
