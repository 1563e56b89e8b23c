// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The bytes that -T v sends and expects: they count up over all data that a program sends, or receives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace streaming {

class Pattern {
  public:
    void fill(std::span<std::byte> data);
    // The index of the first wrong byte; the size if there is none.
    size_t compare(std::span<const std::byte> data);
    void advance(uint64_t bytes) { next_ += static_cast<unsigned>(bytes); }

  private:
    unsigned next_ = 0;
};

// Whether all bytes could be part of a pattern.
bool counts_up(std::span<const std::byte> data);

} // namespace streaming
