// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A nonblocking socket of librsocket-ofi, closed by its destructor.
#pragma once

#include <cstddef>
#include <utility>

#include <sys/types.h>

#include "preload/rendezvous/ends.hpp"

namespace preload::fabric {

class FabricSocket {
  public:
    FabricSocket() = default;
    FabricSocket(FabricSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    FabricSocket& operator=(FabricSocket&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    FabricSocket(const FabricSocket&) = delete;
    FabricSocket& operator=(const FabricSocket&) = delete;
    ~FabricSocket() { close(); }

    // If the result is empty, errno has the reason.
    static FabricSocket listening(const rendezvous::Address& own);
    // Starts to connect, from one address, or if it is null from any, to the other. The socket is writable when
    // connected, see connected().
    static FabricSocket connecting(const rendezvous::Address* own, const rendezvous::Address& peer);

    explicit operator bool() const { return fd_ >= 0; }
    [[nodiscard]] int fd() const { return fd_; }
    void close();
    // 0, or an error of errno(3).
    [[nodiscard]] int connected() const;
    FabricSocket accept(rendezvous::Address& from) const;
    // Results as of recv(2) and send(2), with -errno.
    ssize_t receive(void* buffer, size_t size) const;
    ssize_t send(const void* data, size_t size) const;

  private:
    explicit FabricSocket(int fd) : fd_(fd) {}
    static FabricSocket opened(bool ipv4);
    static FabricSocket bound(const rendezvous::Address& own);
    int fd_ = -1;
};

} // namespace preload::fabric
