// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/rping/wire.hpp"

#include <algorithm>
#include <cstring>

#include <endian.h>
#include <fmt/format.h>

namespace rping {

std::array<std::byte, Advertisement::length> Advertisement::encode() const {
    const uint64_t address_be = htobe64(address);
    const uint32_t key_be = htobe32(key);
    const uint32_t size_be = htobe32(size);
    std::array<std::byte, length> bytes;
    memcpy(&bytes[0], &address_be, 8);
    memcpy(&bytes[8], &key_be, 4);
    memcpy(&bytes[12], &size_be, 4);
    return bytes;
}

Advertisement Advertisement::decode(std::span<const std::byte, length> bytes) {
    Advertisement result;
    memcpy(&result.address, &bytes[0], 8);
    memcpy(&result.key, &bytes[8], 4);
    memcpy(&result.size, &bytes[12], 4);
    return {be64toh(result.address), be32toh(result.key), be32toh(result.size)};
}

namespace {

constexpr unsigned first_letter = 'A';
constexpr unsigned letters = 'z' - 'A' + 1; // includes the ASCII characters between Z and a

class PingData {
  public:
    PingData(uint64_t n, size_t size) : text_(fmt::format("rdma-ping-{}: ", n & INT32_MAX)), n_(n), size_(size) {}
    [[nodiscard]] std::byte at(size_t i) const {
        if (i + 1 == size_) {
            return std::byte{0};
        }
        return static_cast<std::byte>(i < text_.size() ? static_cast<unsigned char>(text_[i])
                                                       : first_letter + (n_ + i - text_.size()) % letters);
    }

  private:
    std::string text_;
    uint64_t n_;
    size_t size_;
};

} // namespace

void fill_ping(std::span<std::byte> data, uint64_t n) {
    const PingData wanted(n, data.size());
    for (size_t i = 0; i < data.size(); ++i) {
        data[i] = wanted.at(i);
    }
}

size_t first_difference(std::span<const std::byte> data, uint64_t n) {
    const PingData wanted(n, data.size());
    size_t i = 0;
    while (i < data.size() && data[i] == wanted.at(i)) {
        ++i;
    }
    return i;
}

std::string ping_text(std::span<const std::byte> data) {
    const auto* text = reinterpret_cast<const char*>(data.data());
    return {text, strnlen(text, data.size())};
}

} // namespace rping
