// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/kernel_sockets.hpp"

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>

#include <dirent.h>
#include <linux/tcp.h> // its tcp_info counts bytes; that of <netinet/tcp.h> is older
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

namespace rstream {

namespace {

constexpr int tcp_established = 1; // of the kernel's enumeration of states
constexpr int tcp_close_wait = 8;

struct Name {
    const void* address = nullptr;
    size_t length = 0;
    in_port_t port = 0;
    bool wildcard = false;
};

Name name_of(const sockaddr& socket) {
    switch (socket.sa_family) {
    case AF_INET: {
        const auto& four = reinterpret_cast<const sockaddr_in&>(socket);
        return {&four.sin_addr, sizeof(four.sin_addr), four.sin_port, four.sin_addr.s_addr == htonl(INADDR_ANY)};
    }
    case AF_INET6: {
        const auto& six = reinterpret_cast<const sockaddr_in6&>(socket);
        return {&six.sin6_addr, sizeof(six.sin6_addr), six.sin6_port, IN6_IS_ADDR_UNSPECIFIED(&six.sin6_addr) != 0};
    }
    default:
        return {};
    }
}

// Whether `socket` is a name that something bound to `bound` can have.
bool is_within(const sockaddr& socket, const sockaddr& bound) {
    const Name a = name_of(socket);
    const Name b = name_of(bound);
    return a.length != 0 && a.length == b.length && a.port == b.port &&
           (b.wildcard || memcmp(a.address, b.address, a.length) == 0);
}

using NameCall = int (*)(int, sockaddr*, socklen_t*);

bool has_name(int fd, NameCall call, const sockaddr& wanted) {
    sockaddr_storage name{};
    socklen_t length = sizeof(name);
    return call(fd, reinterpret_cast<sockaddr*>(&name), &length) == 0 &&
           is_within(reinterpret_cast<const sockaddr&>(name), wanted);
}

// Until `body` says true. 0 or -errno.
int for_each_descriptor(const std::function<bool(int)>& body) {
    struct Closer {
        void operator()(DIR* d) const { closedir(d); }
    };
    const std::unique_ptr<DIR, Closer> fds(opendir("/proc/self/fd"));
    if (!fds) {
        return -errno;
    }
    while (const dirent* entry = readdir(fds.get())) {
        const char* end = entry->d_name + strlen(entry->d_name);
        int fd = -1;
        if (std::from_chars(entry->d_name, end, fd).ptr == end && body(fd)) {
            break;
        }
    }
    return 0;
}

// Whether nobody has read more than `least` bytes of it. The kernel counts the end of the stream as one that was
// received.
bool is_unread(int fd, size_t least) {
    tcp_info info{};
    socklen_t length = sizeof(info);
    int queued = 0;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0 ||
        length < offsetof(tcp_info, tcpi_bytes_received) + sizeof(info.tcpi_bytes_received) ||
        ioctl(fd, FIONREAD, &queued) != 0) {
        return false;
    }
    const auto waiting = static_cast<uint64_t>(queued) + least;
    return (info.tcpi_state == tcp_established && info.tcpi_bytes_received <= waiting) ||
           (info.tcpi_state == tcp_close_wait && info.tcpi_bytes_received <= waiting + 1);
}

// Nothing can be read from it any more, not even what was there.
void end(int fd) {
    std::byte scratch[1024];
    (void)::shutdown(fd, SHUT_RDWR);
    while (recv(fd, scratch, sizeof(scratch), MSG_DONTWAIT) > 0) {
    }
}

} // namespace

int find_kernel_socket(const sockaddr& local, const sockaddr& peer) {
    int found = -ENOENT;
    const auto look = [&](int fd) {
        const bool it = has_name(fd, getpeername, peer) && has_name(fd, getsockname, local);
        found = it ? fd : found;
        return it;
    };
    const int ret = for_each_descriptor(look);
    return ret != 0 ? ret : found;
}

bool is_kernel_socket(int fd, const sockaddr& local) { return has_name(fd, getsockname, local); }

size_t end_unread_visitors(const sockaddr& listening, size_t least) {
    size_t count = 0;
    (void)for_each_descriptor([&](int fd) {
        if (has_name(fd, getsockname, listening) && is_unread(fd, least)) {
            end(fd);
            ++count;
        }
        return false;
    });
    return count;
}

} // namespace rstream
