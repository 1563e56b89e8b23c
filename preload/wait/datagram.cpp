// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/wait/datagram.hpp"

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>

#include <arpa/inet.h>
#include <linux/filter.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "preload/base/system.hpp"

namespace preload::datagram {

namespace {

// What the kernel queues at once (net.unix.max_dgram_qlen) is about as much.
constexpr size_t max_drained = 16;

struct Address {
    explicit Address(Name name) {
        at.sun_family = AF_UNIX;
        const int written = snprintf(at.sun_path + 1, sizeof(at.sun_path) - 1, "rspreload/w/%016llx",
                                     static_cast<unsigned long long>(name));
        length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(written));
    }
    sockaddr_un at{};
    socklen_t length = 0;
};

int make_socket() {
    return static_cast<int>(sys::call(SYS_socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 // since Linux 6.16
#endif

// Who gets a descriptor with a message has to close it, and that of a socket with SO_LINGER may take its time.
bool refuse_descriptors(int fd) {
    const int no = 0;
    return sys::call(SYS_setsockopt, fd, SOL_SOCKET, SO_PASSRIGHTS, &no, sizeof(no)) == 0;
}

bool filter(int fd, uint64_t secret) {
    // The filter loads words in network order, whatever order they were sent in.
    std::array<uint32_t, 2> words{};
    static_assert(sizeof(words) == sizeof(secret));
    __builtin_memcpy(words.data(), &secret, sizeof(secret));
    std::array<sock_filter, 8> program{{
        BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, sizeof(secret), 0, 5),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(words[0]), 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, sizeof(uint32_t)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(words[1]), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, sizeof(secret)),
        BPF_STMT(BPF_RET | BPF_K, 0),
    }};
    const sock_fprog whole{static_cast<unsigned short>(program.size()), program.data()};
    return sys::call(SYS_setsockopt, fd, SOL_SOCKET, SO_ATTACH_FILTER, &whole, sizeof(whole)) == 0;
}

} // namespace

int receiver(Name name, uint64_t secret) {
    const int fd = make_socket();
    const Address own(name);
    // Both first: nothing else is to get in.
    if (fd >= 0 &&
        (!refuse_descriptors(fd) || !filter(fd, secret) || sys::call(SYS_bind, fd, &own.at, own.length) != 0)) {
        sys::call(SYS_close, fd);
        return -1;
    }
    return fd;
}

int sender(Name name) {
    const int fd = make_socket();
    const Address to(name);
    if (fd >= 0 && sys::call(SYS_connect, fd, &to.at, to.length) != 0) {
        sys::call(SYS_close, fd);
        return -1;
    }
    return fd;
}

bool send(int sender, uint64_t secret) {
    const long sent = sys::call(SYS_write, sender, &secret, sizeof(secret));
    return sent == sizeof(secret) || sent == -EAGAIN;
}

void drain(int receiver) {
    std::array<mmsghdr, max_drained> messages{}; // whose bytes nobody needs
    sys::call(SYS_recvmmsg, receiver, messages.data(), messages.size(), MSG_DONTWAIT, nullptr);
}

void take_one(int receiver) {
    uint64_t secret = 0;
    sys::call(SYS_read, receiver, &secret, sizeof(secret));
}

} // namespace preload::datagram
