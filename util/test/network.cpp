// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/test/network.hpp"

#include <chrono>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <thread>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fabtests/common/test.hpp"

namespace util_test {

bool has_ipv6() {
    const int fd = socket(AF_INET6, SOCK_STREAM, 0);
    sockaddr_in6 loopback{};
    loopback.sin6_family = AF_INET6;
    loopback.sin6_addr = in6addr_loopback;
    const bool bound = fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&loopback), sizeof(loopback)) == 0;
    close(fd);
    return bound;
}

HeldPort::HeldPort() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    const int on = 1;
    EXPECT(setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    EXPECT(bind(fd_, reinterpret_cast<sockaddr*>(&address), length) == 0);
    EXPECT(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length) == 0);
    port = std::to_string(ntohs(address.sin_port));
}

HeldPort::~HeldPort() { close(fd_); }

// The kernel's list of sockets is the only thing that tells.
void HeldPort::await_listener() const {
    constexpr const char* listening = "0A";
    char wanted[32];
    snprintf(wanted, sizeof(wanted), "%08X:%04X", htonl(INADDR_LOOPBACK), static_cast<unsigned>(std::stoul(port)));
    const auto start = fabtests::Clock::now();
    while (fabtests::milliseconds_since(start) < fabtests::patience(30000)) {
        std::ifstream list("/proc/net/tcp");
        for (std::string line; std::getline(list, line);) {
            std::istringstream words(line);
            std::string number, local, remote, state;
            words >> number >> local >> remote >> state;
            if (state == listening && local == wanted) {
                return;
            }
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    throw fabtests::Failure("nobody listens on port " + port);
}

} // namespace util_test
