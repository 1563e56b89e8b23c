// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/streaming/socket.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <rdma/rsocket.h>

#include "util/common/failure.hpp"

namespace streaming {

using util::Address;
using util::Clock;
using util::fail;

const Calls& calls_of(const Options& options) { return options.kernel ? kernel_calls : rsocket_calls; }

bool Wait::late() {
    const auto now = Clock::now();
    if (start_ == Clock::time_point{}) {
        start_ = now;
    }
    return now - start_ > limit_;
}

Socket::Socket(const Options& options, int family)
    : options_(&options), calls_(&calls_of(options)), fd_(calls_->socket(family, SOCK_STREAM, 0)) {
    if (fd_ < 0) {
        fail("cannot make a socket: {}", strerror(errno));
    }
    apply_settings();
}

Socket::Socket(const Options& options, int fd, std::string peer)
    : options_(&options), calls_(&calls_of(options)), fd_(fd), peer_(std::move(peer)) {}

Socket::Socket(Socket&& other) noexcept
    : options_(other.options_), calls_(other.calls_), fd_(std::exchange(other.fd_, -1)), peer_(std::move(other.peer_)) {
}

Socket::~Socket() {
    if (fd_ >= 0) {
        calls_->close(fd_);
    }
}

void Socket::set(const char* option, int level, int name, int value) {
    if (calls_->set_option(fd_, level, name, &value, sizeof(value)) != 0) {
        fail("{} {}: {}", option, value, strerror(errno));
    }
}

int Socket::get(const char* option, int level, int name) const {
    int value = 0;
    socklen_t length = sizeof(value);
    if (calls_->get_option(fd_, level, name, &value, &length) != 0) {
        fail("{}: {}", option, strerror(errno));
    }
    return value;
}

// Sizes apply to later connections: they are set before listening or connecting.
void Socket::apply_settings() {
    set("-B", SOL_SOCKET, SO_SNDBUF, static_cast<int>(options_->buffers));
    set("-B", SOL_SOCKET, SO_RCVBUF, static_cast<int>(options_->buffers));
    set("TCP_NODELAY", IPPROTO_TCP, TCP_NODELAY, 1);
    if (options_->keepalive) {
        set("-k", SOL_SOCKET, SO_KEEPALIVE, 1);
        set("-k", IPPROTO_TCP, TCP_KEEPIDLE, *options_->keepalive);
    }
}

void Socket::block(bool wanted) {
    const int flags = calls_->control(fd_, F_GETFL);
    if (flags < 0 || calls_->control(fd_, F_SETFL, wanted ? flags & ~O_NONBLOCK : flags | O_NONBLOCK) != 0) {
        fail("cannot make a socket {}: {}", wanted ? "block" : "nonblocking", strerror(errno));
    }
}

// Sets the modes for the calls of the test.
void Socket::apply_mode() {
    block(blocking());
    if (options_->common.timeout != 0) { // riounmap blocks in every mode
        const timeval limit{static_cast<time_t>(options_->common.timeout), 0};
        for (const int name : {SO_RCVTIMEO, SO_SNDTIMEO}) {
            if (calls_->set_option(fd_, SOL_SOCKET, name, &limit, sizeof(limit)) != 0) {
                fail("--timeout {}: {}", options_->common.timeout, strerror(errno));
            }
        }
    }
}

void Socket::set_inline(std::optional<int> bytes) {
    if (bytes) {
        set("-i", SOL_RDMA, RDMA_INLINE, *bytes);
    }
}

std::string Socket::keepalive_text() const {
    if (get("-k", SOL_SOCKET, SO_KEEPALIVE) == 0) {
        return "Keepalive: OFF";
    }
    return fmt::format("Keepalive: ON\n  time: {}", get("-k", IPPROTO_TCP, TCP_KEEPIDLE));
}

void Socket::set_mappings(int number) { set("RDMA_IOMAPSIZE", SOL_RDMA, RDMA_IOMAPSIZE, number); }

bool Socket::await(short events, unsigned seconds) {
    const auto deadline = Clock::now() + std::chrono::seconds(seconds);
    for (;;) {
        int timeout = -1;
        if (seconds != 0) {
            const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
            timeout = static_cast<int>(std::clamp<int64_t>(left, 0, 60000)); // at most one minute for each poll
        }
        pollfd descriptor{fd_, events, 0};
        const int ready = calls_->poll(&descriptor, 1, timeout);
        if (ready > 0) {
            return true;
        }
        if (ready < 0 && errno != EINTR) {
            fail("poll: {}", strerror(errno));
        }
        if (ready == 0 && seconds != 0 && Clock::now() >= deadline) {
            return false;
        }
    }
}

void Socket::listen(const Address& local) {
    set("SO_REUSEADDR", SOL_SOCKET, SO_REUSEADDR, 1);
    if (calls_->bind(fd_, local.get(), local.length()) != 0) {
        fail("cannot bind to {}: {}", local.text(), strerror(errno));
    }
    if (calls_->listen(fd_, 1) != 0) {
        fail("cannot listen on {}: {}", local.text(), strerror(errno));
    }
    block(false); // accept must not block if a client has already disconnected
}

Socket Socket::accept() {
    for (;;) {
        // By default, a server waits for its client without limit.
        if (!await(POLLIN, options_->common.timeout_given ? options_->common.timeout : 0)) {
            fail("{}: no client came within {} s; --timeout sets how long to wait", local().text(),
                 options_->common.timeout);
        }
        sockaddr_storage storage{};
        socklen_t length = sizeof(storage);
        const int fd = calls_->accept(fd_, reinterpret_cast<sockaddr*>(&storage), &length);
        if (fd < 0) {
            if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) {
                continue;
            }
            fail("{}: cannot accept a connection: {}", local().text(), strerror(errno));
        }
        Socket accepted(*options_, fd, Address(reinterpret_cast<sockaddr*>(&storage), length).text());
        accepted.apply_settings();
        accepted.apply_mode();
        return accepted;
    }
}

void Socket::connect(const Address& remote, const std::optional<Address>& local) {
    peer_ = remote.text();
    if (local && calls_->bind(fd_, local->get(), local->length()) != 0) {
        fail("cannot bind to {}: {}", local->host(), strerror(errno));
    }
    block(false); // so that connecting can time out
    int error = 0;
    if (calls_->connect(fd_, remote.get(), remote.length()) != 0) {
        error = errno;
    }
    if (error == EINPROGRESS) {
        if (!await(POLLOUT, options_->common.timeout)) {
            give_up("connecting");
        }
        error = get("SO_ERROR", SOL_SOCKET, SO_ERROR);
    }
    if (error != 0) {
        fail("{}: cannot connect: {}{}", peer_, strerror(error),
             error == ECONNREFUSED
                 ? fmt::format("; does a server listen there, on this port and {}?",
                               options_->kernel ? "with the kernel's sockets (-T s)" : "with rsockets of this package")
                 : "");
    }
    apply_mode();
}

Address Socket::local() const {
    sockaddr_storage storage{};
    socklen_t length = sizeof(storage);
    if (calls_->name(fd_, reinterpret_cast<sockaddr*>(&storage), &length) != 0) {
        fail("cannot tell the address of a socket: {}", strerror(errno));
    }
    return {reinterpret_cast<sockaddr*>(&storage), length};
}

void Socket::give_up(const char* what) const {
    fail("{}: {}: nothing for {} s; --timeout sets how long to wait", peer_, what, options_->common.timeout);
}

void Socket::take_error(const char* what, Wait& wait) const {
    if (errno == EINTR) {
        return;
    }
    if (errno != EAGAIN) {
        fail("{}: {}: {}", peer_, what, strerror(errno));
    }
    if (blocking() || wait.over()) { // SO_RCVTIMEO and SO_SNDTIMEO return EAGAIN
        give_up(what);
    }
}

void Socket::await_turn(short events, const char* what) {
    if (options_->mode == Mode::asynchronous && !await(events, options_->common.timeout)) {
        give_up(what);
    }
}

void Socket::send(std::span<const std::byte> data) {
    send_by(data.size(), "sending",
            [&](size_t done, int flags) { return calls_->send(fd_, &data[done], data.size() - done, flags); });
}

void Socket::receive(std::span<std::byte> data) {
    const int flags = blocking() ? MSG_WAITALL : MSG_DONTWAIT;
    Wait wait(*options_);
    for (size_t done = 0; done < data.size();) {
        await_turn(POLLIN, "receiving");
        const ssize_t n = calls_->receive(fd_, &data[done], data.size() - done, flags);
        if (n == 0) {
            fail("{}: receiving: the peer has closed the connection", peer_);
        }
        if (n > 0) {
            done += static_cast<size_t>(n);
        } else {
            take_error("receiving", wait);
        }
    }
}

bool Socket::ended() {
    pollfd descriptor{fd_, POLLIN, 0};
    return calls_->poll(&descriptor, 1, 0) > 0;
}

void Socket::shut() {
    calls_->shutdown(fd_, SHUT_RDWR); // fails if the peer disconnected first
}

} // namespace streaming
