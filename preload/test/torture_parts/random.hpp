// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Random numbers from a seed (SplitMix64). A generator is one word, so that every end and every process has one of its
// own, and every word of a stream's pattern can be made alone.
#pragma once

#include <algorithm>
#include <cstdint>

namespace torture {

class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint64_t next() {
        uint64_t z = (state_ += 0x9e3779b97f4a7c15);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return z ^ (z >> 31);
    }
    uint64_t below(uint64_t limit) { return next() % limit; }
    // Small ones as often as large ones.
    uint64_t size(uint64_t limit) { return 1 + below(std::min<uint64_t>(limit, uint64_t{1} << below(19))); }

  private:
    uint64_t state_;
};

} // namespace torture
