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
#include <unistd.h>

#include "base/descriptor.hpp"
#include "prov/rstream/socket_pair.hpp"

namespace rstream {

namespace {

// The number after a key in a line.
template <class Number> bool find_number(std::string_view line, std::string_view key, int base, Number& out) {
    const size_t at = line.find(key);
    if (at == std::string_view::npos) {
        return false;
    }
    const size_t digits = line.find_first_not_of(" \t", at + key.size());
    return digits != std::string_view::npos &&
           std::from_chars(line.data() + digits, line.data() + line.size(), out, base).ec == std::errc();
}

} // namespace

bool WatchList::read(std::vector<Watched>& out) {
    if (!file_.open()) {
        char path[64];
        snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", set_);
        file_ = base::Descriptor(::open(path, O_RDONLY | O_CLOEXEC));
        if (!file_.open()) {
            return false;
        }
    }
    char text[4096];
    size_t kept = 0; // bytes of an incomplete line
    off_t at = 0;
    ssize_t length = 0;
    while ((length = ::pread(file_.get(), text + kept, sizeof(text) - kept, at)) > 0) {
        at += length;
        std::string_view left(text, kept + static_cast<size_t>(length));
        for (size_t end = 0; (end = left.find('\n')) != std::string_view::npos; left.remove_prefix(end + 1)) {
            const std::string_view line = left.substr(0, end);
            Watched one;
            unsigned flags = 0;
            if (line.starts_with("flags:") && find_number(line, "flags:", 8, flags)) {
                closes_on_exec_ = (flags & O_CLOEXEC) != 0;
            } else if (line.starts_with("tfd:") && find_number(line, "tfd:", 10, one.fd) &&
                       find_number(line, "data:", 16, one.data)) {
                if (!find_number(line, "ino:", 16, one.inode) || !find_number(line, "sdev:", 16, one.device)) {
                    one.inode = one.device = 0;
                }
                out.push_back(one);
            }
        }
        if (kept + static_cast<size_t>(length) < sizeof(text)) { // the kernel generates the text in one piece
            break;
        }
        kept = left.size() < sizeof(text) ? left.size() : 0;
        memmove(text, left.data(), kept);
    }
    return length >= 0;
}

bool watched_by(int epoll_fd, std::vector<Watched>& out) { return WatchList(epoll_fd).read(out); }

bool is_epoll_set(int fd) {
    constexpr std::string_view wanted = "anon_inode:[eventpoll]";
    char path[64];
    char target[wanted.size() + 1];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(path, target, sizeof(target));
    return length >= 0 && std::string_view(target, static_cast<size_t>(length)) == wanted;
}

void close_on_exec(int fd) { fcntl(fd, F_SETFD, FD_CLOEXEC); }

int socket_protocol(int fd) {
    int protocol = -1;
    socklen_t length = sizeof(protocol);
    return getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &length) == 0 ? protocol : -1;
}

int close_queue_on_exec(int wait_fd) {
    int found = -1;
    std::vector<Watched> members;
    WatchList list(wait_fd);
    if (!list.read(members) || !list.closes_on_exec()) {
        close_on_exec(wait_fd);
    }
    const size_t own = members.size();
    for (size_t i = 0; i < members.size(); ++i) {
        const Watched one = members[i]; // a copy: `members` may grow below
        close_on_exec(one.fd);
        const int protocol = socket_protocol(one.fd);
        if (protocol == IPPROTO_TCP) {
            found = i < own ? one.fd : found; // from `own` on: sockets of other connections too
        } else if (protocol >= 0) {
            Inode inode{one.inode, one.device};
            if (inode.number != 0 || find_inode(one.fd, inode)) {
                if (const int other = other_end(one.fd, inode); other >= 0) {
                    close_on_exec(other);
                }
            }
        } else if (is_epoll_set(one.fd)) { // libfabric 1.19 and later: a set that connections share
            watched_by(one.fd, members);
        }
    }
    return found;
}

int next_descriptor(int open_fd) { return base::Descriptor(fcntl(open_fd, F_DUPFD_CLOEXEC, 0)).get(); }

} // namespace rstream
