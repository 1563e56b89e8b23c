// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "fabtests/programs/path/channel.hpp"

#include <array>
#include <cerrno>
#include <cstring>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

namespace path_bench {

using util::fail;

namespace {

constexpr std::array<const char*, 5> wait_names = {"block", "spin", "poll", "epoll", "epoll-et"};

sockaddr_in loopback(uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

void set_no_delay(const Fd& socket) {
    const int on = 1;
    checked("setsockopt", setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
}

} // namespace

void fail_call(const char* call) {
    const int error = errno;
    const std::string text = fmt::format("{}: {}", call, strerror(error));
    if (error == EPIPE || error == ECONNRESET) {
        throw PeerLost(text);
    }
    throw util::Failure(text);
}

Listener::Listener() : fd(checked("socket", socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))) {
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    checked("bind", bind(fd.get(), generic, size));
    checked("listen", listen(fd.get(), SOMAXCONN));
    checked("getsockname", getsockname(fd.get(), generic, &size));
    port = ntohs(address.sin_port);
}

Fd Listener::accept() const {
    Fd socket(checked("accept", ::accept4(fd.get(), nullptr, nullptr, SOCK_CLOEXEC)));
    set_no_delay(socket);
    return socket;
}

Fd connect_to(uint64_t port) {
    Fd fd(checked("socket", socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)));
    const sockaddr_in address = loopback(static_cast<uint16_t>(port));
    checked("connect", connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)));
    set_no_delay(fd);
    return fd;
}

void set_non_blocking(const Fd& socket) {
    checked("fcntl", fcntl(socket.get(), F_SETFL, checked("fcntl", fcntl(socket.get(), F_GETFL)) | O_NONBLOCK));
}

void add_to(const Fd& set, int fd, uint32_t events, uint32_t index) {
    epoll_event event{};
    event.events = events;
    event.data.u32 = index;
    checked("epoll_ctl", epoll_ctl(set.get(), EPOLL_CTL_ADD, fd, &event));
}

Wait parse_wait(const std::string& word) {
    for (size_t i = 0; i < wait_names.size(); ++i) {
        if (word == wait_names[i]) {
            return static_cast<Wait>(i);
        }
    }
    fail("--wait {}: neither block, spin, poll, epoll nor epoll-et", word);
}

const char* name_of(Wait wait) { return wait_names[static_cast<size_t>(wait)]; }

Channel::Channel(Fd socket, Wait wait) : socket_(std::move(socket)), wait_(wait) {
    if (wait_ != Wait::block) {
        set_non_blocking(socket_);
    }
    if (wait_ == Wait::epoll || wait_ == Wait::epoll_et) {
        set_ = Fd(checked("epoll_create1", epoll_create1(EPOLL_CLOEXEC)));
        add_to(set_, socket_.get(), wait_ == Wait::epoll ? EPOLLIN : EPOLLIN | EPOLLOUT | EPOLLET, 0);
    }
}

void Channel::await(bool writable) {
    if (wait_ == Wait::spin) {
        return;
    }
    if (wait_ == Wait::poll) {
        pollfd entry{socket_.get(), static_cast<short>(writable ? POLLOUT : POLLIN), 0};
        waited("poll", poll(&entry, 1, -1));
        return;
    }
    epoll_event event{};
    const bool change = writable && wait_ == Wait::epoll;
    if (change) {
        event.events = EPOLLOUT;
        checked("epoll_ctl", epoll_ctl(set_.get(), EPOLL_CTL_MOD, socket_.get(), &event));
    }
    waited("epoll_wait", epoll_wait(set_.get(), &event, 1, -1));
    if (change) {
        event.events = EPOLLIN;
        checked("epoll_ctl", epoll_ctl(set_.get(), EPOLL_CTL_MOD, socket_.get(), &event));
    }
}

void Channel::send(std::span<const char> bytes) {
    while (!bytes.empty()) {
        const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (sent >= 0) {
            bytes = bytes.subspan(static_cast<size_t>(sent));
        } else if (errno == EAGAIN) {
            await(true);
        } else {
            fail_call("send");
        }
    }
}

// A program with level-triggered events asks first and receives then; one with edge-triggered events receives until
// there is nothing, and asks then.
size_t Channel::receive(std::span<char> bytes) {
    if (wait_ == Wait::poll || wait_ == Wait::epoll) {
        await(false);
    }
    for (;;) {
        const ssize_t received = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
        if (received >= 0) {
            return static_cast<size_t>(received);
        }
        if (errno != EAGAIN) {
            fail_call("recv");
        }
        await(false);
    }
}

bool Channel::receive_all(std::span<char> bytes) {
    for (size_t have = 0; have < bytes.size();) {
        const size_t received = receive(bytes.subspan(have));
        if (received == 0 && have == 0) {
            return false;
        }
        if (received == 0) {
            throw PeerLost(fmt::format("the stream ended behind {} of {} bytes", have, bytes.size()));
        }
        have += received;
    }
    return true;
}

} // namespace path_bench
