// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/common/hello.hpp"

#include <algorithm>
#include <cstring>

#include <endian.h>

namespace util {

namespace {
constexpr size_t body = sizeof(Magic) + 3 * sizeof(uint32_t);
}

Bytes encode_hello(const Magic& magic, const Hello& hello) {
    Bytes bytes(1 + body);
    bytes[0] = std::byte{body};
    memcpy(&bytes[1], magic.data(), magic.size());
    const uint32_t numbers[] = {htobe32(hello.size), htobe32(hello.count), htobe32(hello.connections)};
    memcpy(&bytes[1 + magic.size()], numbers, sizeof(numbers));
    return bytes;
}

std::optional<Hello> find_hello(const Magic& magic, std::span<const std::byte> data) {
    const auto* const wanted = reinterpret_cast<const std::byte*>(magic.data());
    const auto at = std::search(data.begin(), data.end(), wanted, wanted + magic.size());
    if (data.end() - at < static_cast<ptrdiff_t>(body)) {
        return std::nullopt;
    }
    uint32_t numbers[3];
    memcpy(numbers, &*at + magic.size(), sizeof(numbers));
    return Hello{be32toh(numbers[0]), be32toh(numbers[1]), be32toh(numbers[2])};
}

} // namespace util
