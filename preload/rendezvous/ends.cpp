// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/rendezvous/ends.hpp"

#include <cstddef>
#include <cstdio>
#include <cstring>

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/tcp.h>
#include <netinet/in.h>

#include "preload/base/system.hpp"
#include "preload/rendezvous/descriptors.hpp"

namespace preload::rendezvous {

namespace {

constexpr std::array<uint8_t, 12> mapped_prefix{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

} // namespace

bool Address::is_ipv4() const { return memcmp(bytes.data(), mapped_prefix.data(), mapped_prefix.size()) == 0; }

std::optional<Address> Address::from(const sockaddr_storage& socket) {
    Address made;
    if (socket.ss_family == AF_INET) {
        sockaddr_in address{};
        memcpy(&address, &socket, sizeof(address));
        memcpy(made.bytes.data(), mapped_prefix.data(), mapped_prefix.size());
        memcpy(made.bytes.data() + mapped_prefix.size(), &address.sin_addr, sizeof(address.sin_addr));
        made.port = ntohs(address.sin_port);
        return made;
    }
    if (socket.ss_family == AF_INET6) {
        sockaddr_in6 address{};
        memcpy(&address, &socket, sizeof(address));
        memcpy(made.bytes.data(), &address.sin6_addr, made.bytes.size());
        made.port = ntohs(address.sin6_port);
        return made;
    }
    return std::nullopt;
}

bool Ends::of(int fd, Ends& out) {
    sockaddr_storage own{};
    sockaddr_storage peer{};
    socklen_t own_length = sizeof(own);
    socklen_t peer_length = sizeof(peer);
    if (sys::call(SYS_getsockname, fd, &own, &own_length) != 0 ||
        sys::call(SYS_getpeername, fd, &peer, &peer_length) != 0) {
        return false;
    }
    const std::optional<Address> here = Address::from(own);
    const std::optional<Address> there = Address::from(peer);
    if (!here || !there) {
        return false;
    }
    out = {*here, *there};
    return true;
}

socklen_t Ends::meeting_name(sockaddr_un& out) const {
    const Address& first = is_first() ? own : peer;
    const Address& second = is_first() ? peer : own;
    std::array<char, INET6_ADDRSTRLEN> one{};
    std::array<char, INET6_ADDRSTRLEN> other{};
    inet_ntop(AF_INET6, first.bytes.data(), one.data(), one.size());
    inet_ntop(AF_INET6, second.bytes.data(), other.data(), other.size());
    out = {};
    out.sun_family = AF_UNIX;
    // A leading zero byte makes it an abstract name, without a file (unix(7)).
    const int length = snprintf(out.sun_path + 1, sizeof(out.sun_path) - 1, "rspreload/%s.%u-%s.%u", one.data(),
                                first.port, other.data(), second.port);
    return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length));
}

namespace {

// A TCP socket of this thread's network namespace, as the kernel describes it (sock_diag(7)).
struct Described {
    inet_diag_msg socket{};
    uint64_t received = 0;

    [[nodiscard]] uint64_t cookie() const {
        return uint64_t{socket.id.idiag_cookie[1]} << 32 | socket.id.idiag_cookie[0];
    }
};

enum class Asked : uint8_t { found, absent, failed };

// The socket whose own end is ends.own. `device`: the index of the one that it is bound to; 0: none.
Asked describe(int netlink, const Ends& ends, uint32_t device, Described& out) {
    struct {
        nlmsghdr header;
        inet_diag_req_v2 request;
    } question{};
    question.header.nlmsg_len = sizeof(question);
    question.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
    question.header.nlmsg_flags = NLM_F_REQUEST;
    inet_diag_req_v2& r = question.request;
    const bool ipv4 = ends.own.is_ipv4() && ends.peer.is_ipv4();
    r.sdiag_family = ipv4 ? AF_INET : AF_INET6;
    r.sdiag_protocol = IPPROTO_TCP;
    r.idiag_ext = 1 << (INET_DIAG_INFO - 1);
    r.idiag_states = ~0U;
    const size_t skip = ipv4 ? mapped_prefix.size() : 0;
    memcpy(r.id.idiag_src, ends.own.bytes.data() + skip, ends.own.bytes.size() - skip);
    memcpy(r.id.idiag_dst, ends.peer.bytes.data() + skip, ends.peer.bytes.size() - skip);
    r.id.idiag_sport = htons(ends.own.port);
    r.id.idiag_dport = htons(ends.peer.port);
    r.id.idiag_if = device;
    r.id.idiag_cookie[0] = r.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
    // The kernel answers within the send call.
    alignas(nlmsghdr) std::array<char, 1024> answer{};
    if (sys::send(netlink, &question, sizeof(question), 0) <= 0) {
        return Asked::failed;
    }
    const long n = sys::recv(netlink, answer.data(), answer.size(), 0);
    nlmsghdr header{};
    if (n >= static_cast<long>(sizeof(header))) {
        memcpy(&header, answer.data(), sizeof(header));
    }
    if (header.nlmsg_type == NLMSG_ERROR && n >= static_cast<long>(NLMSG_LENGTH(sizeof(nlmsgerr)))) {
        nlmsgerr error{};
        memcpy(&error, answer.data() + NLMSG_HDRLEN, sizeof(error));
        return error.error == -ENOENT ? Asked::absent : Asked::failed;
    }
    if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY || n < static_cast<long>(NLMSG_LENGTH(sizeof(inet_diag_msg)))) {
        return Asked::failed;
    }
    memcpy(&out.socket, answer.data() + NLMSG_HDRLEN, sizeof(out.socket));
    const auto* attribute = reinterpret_cast<const rtattr*>(answer.data() + NLMSG_LENGTH(sizeof(inet_diag_msg)));
    auto left = static_cast<unsigned>(n - static_cast<long>(NLMSG_LENGTH(sizeof(inet_diag_msg))));
    for (; RTA_OK(attribute, left); attribute = RTA_NEXT(attribute, left)) {
        constexpr size_t wanted = offsetof(tcp_info, tcpi_bytes_received) + sizeof(uint64_t);
        if (attribute->rta_type == INET_DIAG_INFO && RTA_PAYLOAD(attribute) >= wanted) {
            tcp_info info{};
            memcpy(&info, RTA_DATA(attribute), std::min<size_t>(sizeof(info), RTA_PAYLOAD(attribute)));
            out.received = info.tcpi_bytes_received;
        }
    }
    return Asked::found;
}

// Whether the namespace in which this thread asks is that of fd. Another one can have a connection of somebody else's
// with the same addresses, which would answer for this one's peer.
Asked is_here(int netlink, int fd, const Ends& ends) {
    uint64_t cookie = 0;
    socklen_t length = sizeof(cookie);
    if (sys::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &length) != 0) {
        return Asked::failed;
    }
    int device = 0;
    length = sizeof(device);
    if (sys::getsockopt(fd, SOL_SOCKET, SO_BINDTOIFINDEX, &device, &length) != 0) {
        device = 0;
    }
    Described own;
    const Asked asked = describe(netlink, ends, static_cast<uint32_t>(device), own);
    return asked == Asked::found && own.cookie() != cookie ? Asked::absent : asked;
}

Owner ask(int netlink, int fd, const Ends& ends, uid_t& user, uint64_t& received) {
    switch (is_here(netlink, fd, ends)) {
    case Asked::found:
        break;
    case Asked::absent:
        return Owner::elsewhere;
    case Asked::failed:
        return Owner::unknown;
    }
    Described peer;
    switch (describe(netlink, ends.reversed(), 0, peer)) {
    case Asked::found:
        break;
    case Asked::absent:
        return Owner::absent;
    case Asked::failed:
        return Owner::unknown;
    }
    user = peer.socket.idiag_uid;
    received = peer.received;
    // Without an inode, no process has it yet, or has it any more.
    constexpr uint8_t established = 1; // TCP states of the kernel
    constexpr uint8_t syn_received = 3;
    const bool open = peer.socket.idiag_state == established || peer.socket.idiag_state == syn_received;
    return peer.socket.idiag_inode != 0 ? Owner::found : open ? Owner::unaccepted : Owner::closed;
}

} // namespace

Owner peer_owner(int fd, const Ends& ends, uid_t& user, uint64_t& received) {
    long made = -1;
    const int netlink = descriptors::make([&] {
        made = sys::call(SYS_socket, AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_SOCK_DIAG);
        return made;
    });
    if (netlink < 0) {
        return made >= 0 || made == -EMFILE || made == -ENFILE || made == -ENOMEM || made == -ENOBUFS ? Owner::not_now
                                                                                                      : Owner::unknown;
    }
    Owner owner = ask(netlink, fd, ends, user, received);
    if (owner == Owner::unknown && sys::call(SYS_fcntl, netlink, F_GETFD) == -EBADF) {
        owner = Owner::not_now; // the program has closed it while it was made (lowest_fd.hpp)
    }
    descriptors::close(netlink);
    return owner;
}

} // namespace preload::rendezvous
