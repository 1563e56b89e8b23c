// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/rendezvous/inbox.hpp"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/filter.h>

#include "preload/rendezvous/descriptors.hpp"
#include "preload/rendezvous/passing.hpp"

namespace preload::rendezvous {

namespace {

// SipHash-2-4 of nothing, by a key of the number and a constant: who sees the result does not learn the key. See
// "SipHash: a fast short-input PRF", Aumasson and Bernstein, 2012.
uint64_t public_number(uint64_t service) {
    constexpr uint64_t other_half = 0x786f626e'69736372;
    uint64_t v0 = service ^ 0x736f6d65'70736575;
    uint64_t v1 = other_half ^ 0x646f7261'6e646f6d;
    uint64_t v2 = service ^ 0x6c796765'6e657261;
    uint64_t v3 = other_half ^ 0x74656462'79746573;
    const auto rounds = [&](int count) {
        for (int i = 0; i < count; ++i) {
            v0 += v1;
            v1 = std::rotl(v1, 13) ^ v0;
            v0 = std::rotl(v0, 32);
            v2 += v3;
            v3 = std::rotl(v3, 16) ^ v2;
            v0 += v3;
            v3 = std::rotl(v3, 21) ^ v0;
            v2 += v1;
            v1 = std::rotl(v1, 17) ^ v2;
            v2 = std::rotl(v2, 32);
        }
    };
    rounds(2); // of the last block, which is 0: the length
    v2 ^= 0xff;
    rounds(4);
    return v0 ^ v1 ^ v2 ^ v3;
}

// Other messages are dropped. The kernel runs it when a message is sent.
bool take_only_messages_with(uint64_t service, int socket) {
    std::array<uint32_t, 2> words{};
    memcpy(words.data(), &service, sizeof(service));
    sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), // in network byte order
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(words[0]), 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 4),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(words[1]), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, ~0U), // all of it
        BPF_STMT(BPF_RET | BPF_K, 0),
    };
    const sock_fprog filter{static_cast<unsigned short>(std::size(program)), program};
    return sys::call(SYS_setsockopt, socket, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)) == 0;
}

} // namespace

socklen_t service_address(uint64_t service, sockaddr_un& out) {
    out = {};
    out.sun_family = AF_UNIX;
    const int length = snprintf(out.sun_path + 1, sizeof(out.sun_path) - 1, "rspreload/%016llx",
                                static_cast<unsigned long long>(public_number(service)));
    return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length));
}

int open_inbox(uint64_t service) {
    sockaddr_un address{};
    const socklen_t length = service_address(service, address);
    const int made =
        descriptors::make([] { return sys::call(SYS_socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
    const int yes = 1;
    if (made >= 0 && (sys::call(SYS_setsockopt, made, SOL_SOCKET, SO_PASSCRED, &yes, sizeof(yes)) != 0 ||
                      !take_only_messages_with(service, made) || sys::call(SYS_bind, made, &address, length) != 0)) {
        descriptors::close(made);
        return -1;
    }
    return made;
}

namespace {

unsigned inbox_capacity() {
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
    static const unsigned many = std::min(inbox_capacity(), most);
    return many;
}

bool give_wakeup(int from, uint64_t service, const WakeupGiven& given, int fd, int page) {
    std::array<uint8_t, sizeof(service) + sizeof(given)> bytes{};
    memcpy(bytes.data(), &service, sizeof(service));
    memcpy(bytes.data() + sizeof(service), static_cast<const void*>(&given), sizeof(given));
    sockaddr_un to{};
    const socklen_t length = service_address(service, to);
    return send_with(from, bytes.data(), bytes.size(), fd, &to, length, page);
}

bool is_eventfd(int fd) {
    std::array<char, 32> path{};
    std::array<char, 32> target{};
    snprintf(path.data(), path.size(), "/proc/self/fd/%d", fd);
    const long length = sys::call(SYS_readlinkat, AT_FDCWD, path.data(), target.data(), target.size() - 1);
    return length > 0 && strcmp(target.data(), "anon_inode:[eventfd]") == 0;
}

} // namespace preload::rendezvous
