// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/kernel_sockets.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace rstream {

namespace {

struct Name {
    const void* address = nullptr;
    size_t length = 0;
    in_port_t port = 0;
};

Name name_of(const sockaddr& socket) {
    switch (socket.sa_family) {
    case AF_INET: {
        const auto& four = reinterpret_cast<const sockaddr_in&>(socket);
        return {&four.sin_addr, sizeof(four.sin_addr), four.sin_port};
    }
    case AF_INET6: {
        const auto& six = reinterpret_cast<const sockaddr_in6&>(socket);
        return {&six.sin6_addr, sizeof(six.sin6_addr), six.sin6_port};
    }
    default:
        return {};
    }
}

bool same(const sockaddr& one, const sockaddr& other) {
    const Name a = name_of(one);
    const Name b = name_of(other);
    return a.length != 0 && a.length == b.length && a.port == b.port && memcmp(a.address, b.address, a.length) == 0;
}

using NameCall = int (*)(int, sockaddr*, socklen_t*);

bool has_name(int fd, NameCall call, const sockaddr& wanted) {
    sockaddr_storage name{};
    socklen_t length = sizeof(name);
    return call(fd, reinterpret_cast<sockaddr*>(&name), &length) == 0 &&
           same(reinterpret_cast<const sockaddr&>(name), wanted);
}

// 0 or -errno.
int list_descriptors(std::vector<int>& out) {
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
        if (std::from_chars(entry->d_name, end, fd).ptr == end) {
            out.push_back(fd);
        }
    }
    return 0;
}

} // namespace

int find_kernel_socket(const sockaddr& local, const sockaddr& peer) {
    std::vector<int> fds;
    if (const int ret = list_descriptors(fds); ret != 0) {
        return ret;
    }
    // The highest first: a connection that was just made has one of the highest, and there may be thousands.
    std::sort(fds.begin(), fds.end(), std::greater<>());
    const auto found = std::find_if(fds.begin(), fds.end(), [&](int fd) {
        return has_name(fd, getpeername, peer) && has_name(fd, getsockname, local);
    });
    return found != fds.end() ? *found : -ENOENT;
}

bool is_kernel_socket(int fd, const sockaddr& local) { return has_name(fd, getsockname, local); }

} // namespace rstream
