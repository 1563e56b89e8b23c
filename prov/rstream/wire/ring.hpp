// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Positions in a stream are 64-bit counters that never wrap; a ring maps them to offsets in a buffer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace rstream::wire {

struct Extent {
    size_t offset = 0;
    size_t length = 0;
};

class Ring {
  public:
    explicit Ring(size_t capacity = 1) : capacity_(capacity) {}

    [[nodiscard]] size_t capacity() const { return capacity_; }

    // The longest piece of [position, position + length) that lies in one run of the buffer.
    [[nodiscard]] Extent extent(uint64_t position, uint64_t length) const {
        const size_t offset = position % capacity_;
        return {offset, static_cast<size_t>(std::min<uint64_t>(length, capacity_ - offset))};
    }

  private:
    size_t capacity_;
};

} // namespace rstream::wire
