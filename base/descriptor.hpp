// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Owns a file descriptor: the destructor closes it.
#pragma once

#include <utility>

#include <unistd.h>

namespace base {

class Descriptor {
  public:
    explicit Descriptor(int fd = -1) : fd_(fd) {}
    Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~Descriptor() {
        if (fd_ >= 0) {
            ::close(fd_);
        }
    }

    [[nodiscard]] int get() const { return fd_; }
    [[nodiscard]] bool open() const { return fd_ >= 0; }
    // Transfers ownership to the caller.
    [[nodiscard]] int release() { return std::exchange(fd_, -1); }
    void reset() { Descriptor gone(std::exchange(fd_, -1)); }

  private:
    int fd_;
};

} // namespace base
