// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Upgraded connections for tests that run under the preload library.
#pragma once

#include <array>
#include <cstring>
#include <string>
#include <utility>

#include <dlfcn.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fabtests/common/test.hpp"
#include "preload/test/listener.hpp"

namespace preload_test {

// 3: both of its directions are in memory, see stats/query.cpp.
inline int path_of(int fd) {
    static auto* ask = reinterpret_cast<int (*)(int)>(dlsym(RTLD_DEFAULT, "rspreload_path"));
    return ask != nullptr ? ask(fd) : -1;
}

// Sends a byte, and fd beside it by SCM_RIGHTS.
inline void pass(int socket, int fd) {
    char byte = 'p';
    iovec part{&byte, 1};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    EXPECT_EQ(sendmsg(socket, &message, 0), 1);
}

// The fd that was passed by it.
inline int take_passed(int socket) {
    char byte = 0;
    iovec part{&byte, 1};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    EXPECT_EQ(recvmsg(socket, &message, 0), 1);
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    EXPECT(header != nullptr);
    int fd = -1;
    memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    EXPECT(fd >= 0);
    return fd;
}

// What recvmsg gives for fd, which this process has passed to itself by SCM_RIGHTS.
inline int passed(int fd) {
    std::array<int, 2> ends{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    pass(ends[0], fd);
    const int made = take_passed(ends[1]);
    close(ends[0]);
    close(ends[1]);
    return made;
}

inline void send_all(int fd, const std::string& text, int flags = 0) {
    EXPECT_EQ(send(fd, text.data(), text.size(), flags), static_cast<ssize_t>(text.size()));
}

inline std::string receive(int fd, size_t size, int flags = 0) {
    std::string text(size, '\0');
    const ssize_t n = recv(fd, text.data(), size, flags);
    EXPECT(n >= 0);
    text.resize(static_cast<size_t>(n));
    return text;
}

// Waits for one of the events.
inline short events_of(int fd, short wanted) {
    pollfd one{fd, wanted, 0};
    EXPECT_EQ(poll(&one, 1, static_cast<int>(fabtests::patience(5000))), 1);
    return one.revents;
}

// Two connected sockets that have not moved a byte: a has connected, b was accepted.
struct Connected {
    int a = -1;
    int b = -1;

    Connected() : Connected([](int, int) {}) {}
    // prepare(listener, a): before one is bound and the other one connects.
    template <class Prepare> explicit Connected(const Prepare& prepare) {
        const Listener listener(1, [&](int fd) {
            a = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
            prepare(fd, a);
        });
        (void)listener.connect(a);
        b = listener.accept();
    }
    Connected(const Connected&) = delete;
    Connected& operator=(const Connected&) = delete;
    ~Connected() {
        close(a);
        close(b);
    }
    // A byte each way.
    void exchange() const {
        for (const auto& [from, to] : {std::pair{a, b}, std::pair{b, a}}) {
            char byte = 'x';
            EXPECT_EQ(send(from, &byte, 1, 0), 1);
            EXPECT_EQ(recv(to, &byte, 1, 0), 1);
            EXPECT_EQ(byte, 'x');
        }
    }
    // Exchanges bytes until both directions are in memory. False: they are not after some seconds.
    [[nodiscard]] bool is_upgraded_soon() const {
        constexpr int patience = 5000;
        const auto is_upgraded = [&] { return path_of(a) == 3 && path_of(b) == 3; };
        for (int i = 0; i < patience && !is_upgraded(); ++i) {
            exchange();
            usleep(1000);
        }
        return is_upgraded();
    }
};

// Both of whose directions are in memory.
struct Pair : Connected {
    Pair() { EXPECT(is_upgraded_soon()); }
};

} // namespace preload_test
