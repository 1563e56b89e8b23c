// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fabtests/common/transport.hpp"

namespace fabtests {

namespace {

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what + ": " + strerror(errno)); }

class KernelTransport : public Transport {
  public:
    explicit KernelTransport(const Options& options) : poll_(options.poll) {
        const AddressInfo address = resolve(options);
        fd_ = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const int one = 1;
        if (fd_ < 0) {
            fail("socket");
        }
        if (options.is_client()) {
            if (connect(fd_, address->ai_addr, address->ai_addrlen) != 0) {
                fail("connect " + options.host + " port " + options.port);
            }
        } else {
            accept_one(options, *address);
        }
        if (options.buffers != 0) {
            const int size = static_cast<int>(options.buffers);
            setsockopt(fd_, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
            setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
        }
        setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        if (fcntl(fd_, F_SETFL, O_NONBLOCK) != 0) {
            fail("fcntl");
        }
    }
    ~KernelTransport() override { ::close(fd_); }

    void send(const void* data, size_t length) override {
        const auto* at = static_cast<const char*>(data);
        while (length != 0) {
            const ssize_t sent = ::send(fd_, at, length, MSG_NOSIGNAL);
            if (sent < 0) {
                pass_time("send", POLLOUT);
                continue;
            }
            at += sent;
            length -= static_cast<size_t>(sent);
        }
    }

    void recv(void* data, size_t length) override {
        auto* at = static_cast<char*>(data);
        while (length != 0) {
            const ssize_t got = ::recv(fd_, at, length, 0);
            if (got == 0) {
                throw std::runtime_error("the peer ended the stream too early");
            }
            if (got < 0) {
                pass_time("recv", POLLIN);
                continue;
            }
            at += got;
            length -= static_cast<size_t>(got);
        }
    }

  private:
    void accept_one(const Options& options, const addrinfo& address) {
        const int listener = fd_;
        const int one = 1;
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
        sockaddr_storage name{};
        socklen_t length = sizeof(name);
        if (bind(listener, address.ai_addr, address.ai_addrlen) != 0 || listen(listener, 1) != 0 ||
            getsockname(listener, reinterpret_cast<sockaddr*>(&name), &length) != 0) {
            fail("listen" + (options.source.empty() ? "" : " on " + options.source) + " port " + options.port);
        }
        announce_port(options, ntohs(name.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(name).sin6_port
                                                                : reinterpret_cast<sockaddr_in&>(name).sin_port));
        fd_ = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        if (fd_ < 0) {
            fail("accept");
        }
        ::close(listener);
    }

    void pass_time(const char* what, short events) {
        if (errno != EAGAIN && errno != EINTR) {
            fail(what);
        }
        if (poll_) {
            pollfd fd{fd_, events, 0};
            ::poll(&fd, 1, -1);
        }
    }

    int fd_ = -1;
    bool poll_;
};

} // namespace

AddressInfo resolve(const Options& options) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = options.is_client() ? 0 : AI_PASSIVE;
    addrinfo* found = nullptr;
    const std::string& node = options.is_client() ? options.host : options.source;
    if (const int ret = getaddrinfo(node.empty() ? nullptr : node.c_str(), options.port.c_str(), &hints, &found);
        ret != 0) {
        throw std::runtime_error(node + ": " + gai_strerror(ret));
    }
    return {found, freeaddrinfo};
}

std::unique_ptr<Transport> open_kernel(const Options& options) { return std::make_unique<KernelTransport>(options); }

} // namespace fabtests
