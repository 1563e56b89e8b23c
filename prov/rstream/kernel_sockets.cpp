// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/kernel_sockets.hpp"

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>

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

} // namespace rstream
