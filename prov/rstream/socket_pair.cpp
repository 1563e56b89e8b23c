// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/socket_pair.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>

#include <dirent.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/descriptor.hpp"

namespace rstream {

namespace {

// This many fds are checked before all of them are.
constexpr int near = 64;

// The kernel's internal encoding of a device number, which fdinfo shows.
constexpr unsigned minor_bits = 20;

bool is_unix_socket(int fd) {
    int domain = 0;
    socklen_t length = sizeof(domain);
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 && domain == AF_UNIX;
}

bool is_at(int fd, const Inode& wanted) {
    Inode found;
    return find_inode(fd, found) && found == wanted && is_unix_socket(fd);
}

int find_between(int first, int end, const Inode& wanted) {
    for (int fd = std::max(first, 0); fd < end; ++fd) {
        if (is_at(fd, wanted)) {
            return fd;
        }
    }
    return -1;
}

int find_anywhere(const Inode& wanted) {
    const std::unique_ptr<DIR, int (*)(DIR*)> all(opendir("/proc/self/fd"), closedir);
    if (all == nullptr) {
        return -1;
    }
    while (const dirent* one = readdir(all.get())) {
        int fd = -1;
        const char* end = one->d_name + strlen(one->d_name);
        if (const auto read = std::from_chars(one->d_name, end, fd);
            read.ec == std::errc() && read.ptr == end && is_at(fd, wanted)) {
            return fd;
        }
    }
    return -1;
}

// The inode of the socket that an AF_UNIX socket is connected to, from NETLINK_SOCK_DIAG (sock_diag(7)); 0 if it has
// been closed. Nothing if the kernel or a sandbox does not allow the question.
std::optional<uint32_t> ask_peer(uint32_t inode) {
    const base::Descriptor netlink(::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_SOCK_DIAG));
    struct {
        nlmsghdr header;
        unix_diag_req request;
    } question{};
    question.header.nlmsg_len = sizeof(question);
    question.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
    question.header.nlmsg_flags = NLM_F_REQUEST;
    question.request.sdiag_family = AF_UNIX;
    question.request.udiag_states = ~0U;
    question.request.udiag_ino = inode;
    question.request.udiag_show = UDIAG_SHOW_PEER;
    question.request.udiag_cookie[0] = question.request.udiag_cookie[1] = ~0U; // any
    // The kernel answers within the send call.
    alignas(nlmsghdr) std::array<char, 1024> answer{};
    if (!netlink.open() || ::send(netlink.get(), &question, sizeof(question), 0) < 0) {
        return std::nullopt;
    }
    const ssize_t length = ::recv(netlink.get(), answer.data(), answer.size(), 0);
    constexpr ssize_t fixed = NLMSG_LENGTH(sizeof(unix_diag_msg));
    nlmsghdr header{};
    if (length < fixed) {
        return std::nullopt;
    }
    memcpy(&header, answer.data(), sizeof(header));
    if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY) { // an error
        return std::nullopt;
    }
    const auto* attribute = reinterpret_cast<const rtattr*>(answer.data() + fixed);
    auto left = static_cast<unsigned>(length - fixed);
    for (; RTA_OK(attribute, left); attribute = RTA_NEXT(attribute, left)) {
        uint32_t peer = 0;
        if (attribute->rta_type == UNIX_DIAG_PEER && RTA_PAYLOAD(attribute) >= sizeof(peer)) {
            memcpy(&peer, RTA_DATA(attribute), sizeof(peer));
            return peer;
        }
    }
    return 0;
}

} // namespace

bool find_inode(int fd, Inode& out) {
    struct statx one {};
    if (statx(fd, "", AT_EMPTY_PATH, STATX_INO, &one) != 0) {
        return false;
    }
    out = {one.stx_ino, uint64_t{one.stx_dev_major} << minor_bits | one.stx_dev_minor};
    return true;
}

// The kernel gives the second end of a pair the lowest fd above the first one's that is free, and the next inode unless
// another process or thread creates a file between the two. It looks for a peer among all sockets of the network
// namespace, so it is asked only if the next fd is not that end.
int other_end(int fd, const Inode& inode) {
    if (!is_unix_socket(fd)) {
        return -1;
    }
    Inode wanted{inode.number + 1, inode.device};
    if (is_at(fd + 1, wanted)) {
        return fd + 1;
    }
    const std::optional<uint32_t> peer = ask_peer(static_cast<uint32_t>(inode.number));
    if (peer == 0) {
        return -1;
    }
    wanted.number = peer ? *peer : wanted.number;
    int found = find_between(fd + 1, fd + near, wanted);
    if (found < 0 && peer) { // above the fds of a program that has many, and few gaps
        const int next = base::Descriptor(fcntl(fd, F_DUPFD_CLOEXEC, fd)).get();
        found = find_between(std::max(fd + near, next - near), next, wanted);
    }
    return found >= 0 || !peer ? found : find_anywhere(wanted);
}

} // namespace rstream
