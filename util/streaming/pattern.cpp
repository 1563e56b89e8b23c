// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/streaming/pattern.hpp"

namespace streaming {

void Pattern::fill(std::span<std::byte> data) {
    for (std::byte& one : data) {
        one = static_cast<std::byte>(next_++);
    }
}

size_t Pattern::compare(std::span<const std::byte> data) {
    size_t first = data.size();
    for (size_t i = 0; i < data.size(); ++i) {
        if (data[i] != static_cast<std::byte>(next_++) && first == data.size()) {
            first = i;
        }
    }
    return first;
}

bool counts_up(std::span<const std::byte> data) {
    for (size_t i = 1; i < data.size(); ++i) {
        if (data[i] != static_cast<std::byte>(static_cast<unsigned>(data[i - 1]) + 1)) {
            return false;
        }
    }
    return true;
}

} // namespace streaming
