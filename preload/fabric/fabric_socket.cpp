// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/fabric/fabric_socket.hpp"

#include <cerrno>
#include <cstring>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>

#include <rdma/rsocket.h>

namespace preload::fabric {

namespace {

socklen_t socket_address(const rendezvous::Address& address, sockaddr_storage& out) {
    out = {};
    if (address.is_ipv4()) {
        auto& v4 = reinterpret_cast<sockaddr_in&>(out);
        v4.sin_family = AF_INET;
        v4.sin_port = htons(address.port);
        memcpy(&v4.sin_addr, address.bytes.data() + address.bytes.size() - sizeof(v4.sin_addr), sizeof(v4.sin_addr));
        return sizeof(v4);
    }
    auto& v6 = reinterpret_cast<sockaddr_in6&>(out);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(address.port);
    memcpy(&v6.sin6_addr, address.bytes.data(), sizeof(v6.sin6_addr));
    return sizeof(v6);
}

} // namespace

void FabricSocket::close() {
    if (fd_ >= 0) {
        rclose(std::exchange(fd_, -1));
    }
}

FabricSocket FabricSocket::opened(bool ipv4) {
    FabricSocket made(rsocket(ipv4 ? AF_INET : AF_INET6, SOCK_STREAM, 0));
    const int yes = 1;
    if (made && (rfcntl(made.fd_, F_SETFL, O_NONBLOCK) != 0 ||
                 rsetsockopt(made.fd_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) != 0)) {
        const int error = errno;
        made.close();
        errno = error;
    }
    return made;
}

FabricSocket FabricSocket::bound(const rendezvous::Address& own) {
    sockaddr_storage address{};
    const socklen_t length = socket_address(own, address);
    FabricSocket made = opened(own.is_ipv4());
    if (made && rbind(made.fd_, reinterpret_cast<sockaddr*>(&address), length) != 0) {
        const int error = errno;
        made.close();
        errno = error;
    }
    return made;
}

FabricSocket FabricSocket::listening(const rendezvous::Address& own) {
    constexpr int backlog = 4;
    FabricSocket made = bound(own);
    if (made && rlisten(made.fd_, backlog) != 0) {
        const int error = errno;
        made.close();
        errno = error;
    }
    return made;
}

FabricSocket FabricSocket::connecting(const rendezvous::Address* own, const rendezvous::Address& peer) {
    FabricSocket made = own != nullptr ? bound({own->bytes, 0}) : opened(peer.is_ipv4());
    sockaddr_storage address{};
    const socklen_t length = socket_address(peer, address);
    const int yes = 1;
    if (made && (rsetsockopt(made.fd_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes)) != 0 ||
                 (rconnect(made.fd_, reinterpret_cast<sockaddr*>(&address), length) != 0 && errno != EINPROGRESS))) {
        const int error = errno;
        made.close();
        errno = error;
    }
    return made;
}

int FabricSocket::connected() const {
    int error = 0;
    socklen_t length = sizeof(error);
    return rgetsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

FabricSocket FabricSocket::accept(rendezvous::Address& from) const {
    sockaddr_storage address{};
    socklen_t length = sizeof(address);
    FabricSocket made(raccept4(fd_, reinterpret_cast<sockaddr*>(&address), &length, SOCK_NONBLOCK));
    if (made) {
        const int yes = 1;
        rsetsockopt(made.fd_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes)); // without it, it is only slower
        from = rendezvous::Address::from(address).value_or(rendezvous::Address());
    }
    return made;
}

ssize_t FabricSocket::receive(void* buffer, size_t size) const {
    const ssize_t n = rrecv(fd_, buffer, size, MSG_DONTWAIT);
    return n >= 0 ? n : -errno;
}

ssize_t FabricSocket::send(const void* data, size_t size) const {
    const ssize_t n = rsend(fd_, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    return n >= 0 ? n : -errno;
}

} // namespace preload::fabric
