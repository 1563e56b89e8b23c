// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/core_descriptors.hpp"

#include <charconv>
#include <cstdio>
#include <cstring>
#include <string_view>

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/descriptor.hpp"

namespace rstream {

namespace {

// Numbers above one end of a pair of sockets at which the other one is looked for.
constexpr int longest_search = 64;

// The other end of a pair, which the kernel gives the next inode and the next free number.
int other_end(int fd) {
    struct statx one {};
    if (statx(fd, "", AT_EMPTY_PATH, STATX_INO, &one) != 0) {
        return -1;
    }
    for (int other = fd + 1; other < fd + longest_search; ++other) {
        struct statx two {};
        if (statx(other, "", AT_EMPTY_PATH, STATX_INO, &two) == 0 && two.stx_dev_major == one.stx_dev_major &&
            two.stx_dev_minor == one.stx_dev_minor && two.stx_ino == one.stx_ino + 1) {
            return other;
        }
    }
    return -1;
}

} // namespace

std::vector<int> watched_by(int epoll_fd) {
    constexpr std::string_view key = "tfd:";
    std::vector<int> found;
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", epoll_fd);
    const base::Descriptor file(::open(path, O_RDONLY | O_CLOEXEC));
    char text[1024];
    size_t kept = 0; // of a line that is not complete yet
    ssize_t length = 0;
    while (file.get() >= 0 && (length = ::read(file.get(), text + kept, sizeof(text) - kept)) > 0) {
        std::string_view left(text, kept + static_cast<size_t>(length));
        for (size_t end = 0; (end = left.find('\n')) != std::string_view::npos; left.remove_prefix(end + 1)) {
            const std::string_view line = left.substr(0, end);
            const size_t digits = line.find_first_not_of(' ', key.size());
            int fd = -1;
            if (line.starts_with(key) && digits != std::string_view::npos &&
                std::from_chars(line.data() + digits, line.data() + line.size(), fd).ec == std::errc()) {
                found.push_back(fd);
            }
        }
        if (kept + static_cast<size_t>(length) < sizeof(text)) { // the kernel makes it in one piece
            break;
        }
        kept = left.size() < sizeof(text) ? left.size() : 0;
        memmove(text, left.data(), kept);
    }
    return found;
}

bool close_on_exec(int fd) { return fcntl(fd, F_SETFD, FD_CLOEXEC) == 0; }

int close_queue_on_exec(int wait_fd) {
    int found = -1;
    (void)close_on_exec(wait_fd);
    for (const int fd : watched_by(wait_fd)) {
        (void)close_on_exec(fd);
        int protocol = 0;
        socklen_t length = sizeof(protocol);
        if (getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &length) != 0) {
            continue; // not a socket
        }
        if (protocol == IPPROTO_TCP) {
            found = fd;
        } else if (const int other = other_end(fd); other >= 0) {
            (void)close_on_exec(other);
        }
    }
    return found;
}

int next_descriptor(int open_fd) { return base::Descriptor(fcntl(open_fd, F_DUPFD_CLOEXEC, 0)).get(); }

} // namespace rstream
