// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Little-endian fields in a byte buffer, independent of the host's byte order and alignment.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace rstream::wire {

class Writer {
  public:
    explicit Writer(std::span<std::byte> out) : out_(out) {}

    template <std::unsigned_integral T> void put(T value) {
        for (size_t i = 0; i < sizeof(T); ++i) {
            out_[at_++] = static_cast<std::byte>(value >> (8 * i) & 0xff);
        }
    }

  private:
    std::span<std::byte> out_;
    size_t at_ = 0;
};

class Reader {
  public:
    explicit Reader(std::span<const std::byte> in) : in_(in) {}

    template <std::unsigned_integral T> T get() {
        T value = 0;
        for (size_t i = 0; i < sizeof(T); ++i) {
            value = static_cast<T>(value | static_cast<T>(static_cast<T>(in_[at_++]) << (8 * i)));
        }
        return value;
    }
    void skip(size_t bytes) { at_ += bytes; }

  private:
    std::span<const std::byte> in_;
    size_t at_ = 0;
};

} // namespace rstream::wire
