// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The bytes that -T v sends and expects: they count up without end, over all that a program sends, or receives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace streaming {

class Pattern {
  public:
    void fill(std::span<std::byte> data);
    // The index of the first byte that is not the next one; the size if there is none.
    size_t compare(std::span<const std::byte> data);
    void advance(uint64_t bytes) { next_ += static_cast<unsigned>(bytes); }

  private:
    unsigned next_ = 0;
};

// Whether all of it could be of a pattern.
bool counts_up(std::span<const std::byte> data);

} // namespace streaming
