// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Starts helpers, and sends them orders.
#include "preload/test/torture_parts/helpers.hpp"

#include <cerrno>
#include <csignal>
#include <cstring>

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "preload/test/torture_parts/drive.hpp"

namespace torture {

namespace {

struct Order {
    uint32_t end;
    uint32_t style;
    uint32_t quota;
    uint32_t back; // 1: it passes the descriptor back
    uint64_t seed;
};

bool send_order(int socket, const Order& order, int fd) {
    iovec part{const_cast<Order*>(&order), sizeof(order)};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (fd >= 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof(control);
        cmsghdr* header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    }
    return sendmsg(socket, &message, MSG_NOSIGNAL) == sizeof(order);
}

bool receive_order(int socket, Order& order, int& fd) {
    iovec part{&order, sizeof(order)};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    fd = -1;
    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != sizeof(order)) {
        return false;
    }
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
        memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    }
    return true;
}

[[noreturn]] void help(int socket) {
    Order order{};
    int fd = -1;
    while (receive_order(socket, order, fd)) {
        End& e = shared->ends[order.end];
        Random random(order.seed);
        drive(e, fd, order.quota, order.style, random);
        if (!send_order(socket, order, order.back != 0 ? fd : -1)) {
            fail("the helper cannot answer: %s", strerror(errno));
        }
        close(fd);
    }
    _exit(0);
}

void start_helper(int& socket) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        fail("socketpair: %s", strerror(errno));
    }
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(pair[0]);
        help(pair[1]);
    }
    close(pair[1]);
    socket = pair[0];
}

} // namespace

Helpers::Helpers(uint32_t count) : sockets_(count, -1) {
    for (int& socket : sockets_) {
        start_helper(socket);
    }
}

void Helpers::pass(End& e, int& fd, uint64_t quota, uint32_t style, bool back, Random& random) const {
    const int helper = sockets_[index_of(e) / 2 % sockets_.size()];
    Order order{index_of(e), style, static_cast<uint32_t>(quota), back ? 1U : 0U, random.next()};
    if (!send_order(helper, order, fd)) {
        fail("passing a descriptor: %s", strerror(errno));
    }
    if (back) {
        close(fd);
    }
    int got = -1;
    if (!receive_order(helper, order, got)) {
        fail("the helper has ended");
    }
    if (back) {
        fd = got;
    }
}

} // namespace torture
