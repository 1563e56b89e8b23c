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

namespace {

// The number behind a key of a line.
template <class Number> bool find_number(std::string_view line, std::string_view key, int base, Number& out) {
    const size_t at = line.find(key);
    if (at == std::string_view::npos) {
        return false;
    }
    const size_t digits = line.find_first_not_of(' ', at + key.size());
    return digits != std::string_view::npos &&
           std::from_chars(line.data() + digits, line.data() + line.size(), out, base).ec == std::errc();
}

} // namespace

bool watched_by(int epoll_fd, std::vector<Watched>& out) {
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", epoll_fd);
    const base::Descriptor file(::open(path, O_RDONLY | O_CLOEXEC));
    if (file.get() < 0) {
        return false;
    }
    char text[4096];
    size_t kept = 0; // of a line that is not complete yet
    ssize_t length = 0;
    while ((length = ::read(file.get(), text + kept, sizeof(text) - kept)) > 0) {
        std::string_view left(text, kept + static_cast<size_t>(length));
        for (size_t end = 0; (end = left.find('\n')) != std::string_view::npos; left.remove_prefix(end + 1)) {
            const std::string_view line = left.substr(0, end);
            Watched one;
            if (line.starts_with("tfd:") && find_number(line, "tfd:", 10, one.fd) &&
                find_number(line, "data:", 16, one.data)) {
                out.push_back(one);
            }
        }
        if (kept + static_cast<size_t>(length) < sizeof(text)) { // the kernel makes it in one piece
            break;
        }
        kept = left.size() < sizeof(text) ? left.size() : 0;
        memmove(text, left.data(), kept);
    }
    return true;
}

bool is_epoll_set(int fd) {
    constexpr std::string_view wanted = "anon_inode:[eventpoll]";
    char path[64];
    char target[wanted.size() + 1];
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(path, target, sizeof(target));
    return length >= 0 && std::string_view(target, static_cast<size_t>(length)) == wanted;
}

bool close_on_exec(int fd) { return fcntl(fd, F_SETFD, FD_CLOEXEC) == 0; }

namespace {

// The protocol of a socket; -1 of anything else.
int protocol_of(int fd) {
    int protocol = -1;
    socklen_t length = sizeof(protocol);
    return getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &length) == 0 ? protocol : -1;
}

} // namespace

int close_queue_on_exec(int wait_fd) {
    int found = -1;
    std::vector<Watched> members;
    (void)watched_by(wait_fd, members);
    (void)close_on_exec(wait_fd);
    const size_t own = members.size();
    for (size_t i = 0; i < members.size(); ++i) {
        const int fd = members[i].fd;
        (void)close_on_exec(fd);
        const int protocol = protocol_of(fd);
        if (protocol == IPPROTO_TCP) {
            found = i < own ? fd : found; // behind that are the sockets of other connections too
        } else if (protocol >= 0) {
            if (const int other = other_end(fd); other >= 0) {
                (void)close_on_exec(other);
            }
        } else if (is_epoll_set(fd)) { // libfabric 1.19 and later: a set that connections share
            (void)watched_by(fd, members);
        }
    }
    return found;
}

int next_descriptor(int open_fd) { return base::Descriptor(fcntl(open_fd, F_DUPFD_CLOEXEC, 0)).get(); }

} // namespace rstream
