// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/test/hostile_echo.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace hostile {

namespace {

sockaddr_in loopback(uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    return address;
}

} // namespace

uint64_t now_ms() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000 + static_cast<uint64_t>(now.tv_nsec) / 1000000;
}

int victim(const char* file) {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    sockaddr_in address = loopback(0);
    socklen_t length = sizeof(address);
    if (bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(listener, 128) != 0 ||
        getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
        return 1;
    }
    const int set = epoll_create1(0);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = listener;
    epoll_ctl(set, EPOLL_CTL_ADD, listener, &event);
    FILE* out = fopen(file, "w");
    fprintf(out, "%u\n", ntohs(address.sin_port));
    fclose(out);
    std::unordered_map<int, std::string> pending;
    std::vector<char> buffer(32768);
    for (;;) {
        std::array<epoll_event, 32> events{};
        const int n = epoll_wait(set, events.data(), events.size(), -1);
        for (int i = 0; i < n; ++i) {
            const int fd = events[static_cast<size_t>(i)].data.fd;
            if (fd == listener) {
                const int made = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK);
                if (made >= 0) {
                    pending[made] = {};
                    event.events = EPOLLIN;
                    event.data.fd = made;
                    epoll_ctl(set, EPOLL_CTL_ADD, made, &event);
                }
                continue;
            }
            std::string& rest = pending[fd];
            bool gone = false;
            if (rest.empty()) {
                const ssize_t got = read(fd, buffer.data(), buffer.size());
                gone = got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
                rest.assign(buffer.data(), static_cast<size_t>(std::max<ssize_t>(got, 0)));
            }
            if (!rest.empty()) {
                const ssize_t put = send(fd, rest.data(), rest.size(), MSG_NOSIGNAL);
                gone = gone || (put < 0 && errno != EAGAIN && errno != EINTR);
                rest.erase(0, static_cast<size_t>(std::max<ssize_t>(put, 0)));
            }
            if (gone) {
                pending.erase(fd);
                close(fd);
                continue;
            }
            event.events = rest.empty() ? EPOLLIN : EPOLLOUT;
            event.data.fd = fd;
            epoll_ctl(set, EPOLL_CTL_MOD, fd, &event);
        }
    }
}

int connected(uint16_t port) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in address = loopback(port);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
        perror("connect");
        exit(1);
    }
    return fd;
}

int honest(uint16_t port, uint64_t seconds) {
    constexpr int count = 4;
    constexpr int patience_s = 5;
    std::mt19937 random(7);
    std::array<int, count> fds{};
    for (int& fd : fds) {
        fd = connected(port);
        const timeval limit{patience_s, 0};
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    }
    uint64_t verified = 0;
    uint64_t slowest = 0;
    const uint64_t end = now_ms() + seconds * 1000;
    while (now_ms() < end) {
        for (const int fd : fds) {
            std::vector<uint8_t> data(1 + random() % 20000);
            for (uint8_t& byte : data) {
                byte = static_cast<uint8_t>(random());
            }
            const uint64_t begin = now_ms();
            if (send(fd, data.data(), data.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(data.size())) {
                printf("# honest: send: %s\n", strerror(errno));
                return 1;
            }
            std::vector<uint8_t> back(data.size());
            for (size_t got = 0; got < back.size();) {
                const ssize_t n = recv(fd, back.data() + got, back.size() - got, 0);
                if (n <= 0) {
                    printf("# honest: the victim does not answer after %llu bytes: %s\n",
                           static_cast<unsigned long long>(verified), n == 0 ? "end of stream" : strerror(errno));
                    return 1;
                }
                got += static_cast<size_t>(n);
            }
            if (back != data) {
                printf("# honest: wrong bytes after %llu\n", static_cast<unsigned long long>(verified));
                return 1;
            }
            slowest = std::max(slowest, now_ms() - begin);
            verified += data.size();
        }
        usleep(500);
    }
    printf("# honest: %llu bytes verified, the slowest answer took %llu ms\n",
           static_cast<unsigned long long>(verified), static_cast<unsigned long long>(slowest));
    return 0;
}

} // namespace hostile
