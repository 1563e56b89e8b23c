// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/rendezvous/inbox.hpp"

#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>

#include "preload/rendezvous/descriptors.hpp"

namespace preload::rendezvous {

socklen_t service_address(uint64_t service, sockaddr_un& out) {
    out = {};
    out.sun_family = AF_UNIX;
    const int length = snprintf(out.sun_path + 1, sizeof(out.sun_path) - 1, "rspreload/%016llx",
                                static_cast<unsigned long long>(service));
    return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length));
}

int open_inbox(uint64_t service) {
    sockaddr_un address{};
    const socklen_t length = service_address(service, address);
    const int made =
        descriptors::make([] { return sys::call(SYS_socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
    const int yes = 1;
    if (made >= 0 && (sys::call(SYS_setsockopt, made, SOL_SOCKET, SO_PASSCRED, &yes, sizeof(yes)) != 0 ||
                      sys::call(SYS_bind, made, &address, length) != 0)) {
        descriptors::close(made);
        return -1;
    }
    return made;
}

namespace {

unsigned inbox_room() {
    std::array<char, 16> text{};
    const int fd = descriptors::make(
        [] { return sys::call(SYS_openat, AT_FDCWD, "/proc/sys/net/unix/max_dgram_qlen", O_RDONLY | O_CLOEXEC); });
    if (fd >= 0) {
        sys::call(SYS_read, fd, text.data(), text.size() - 1);
        descriptors::close(fd);
    }
    return static_cast<unsigned>(std::max(atoi(text.data()), 1));
}

} // namespace

unsigned many_messages() {
    constexpr unsigned most = 8; // Linux's default is 10
    static const unsigned many = std::min(inbox_room(), most);
    return many;
}

bool is_eventfd(int fd) {
    std::array<char, 32> path{};
    std::array<char, 32> target{};
    snprintf(path.data(), path.size(), "/proc/self/fd/%d", fd);
    const long length = sys::call(SYS_readlinkat, AT_FDCWD, path.data(), target.data(), target.size() - 1);
    return length > 0 && strcmp(target.data(), "anon_inode:[eventfd]") == 0;
}

} // namespace preload::rendezvous
