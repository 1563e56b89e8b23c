// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A histogram of durations, of constant size, since a run may be unlimited. Percentiles are accurate to about 3
// percent; minimum, maximum and mean are exact.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace util {

class Histogram {
  public:
    void record(uint64_t value);
    void merge(const Histogram& other);

    [[nodiscard]] uint64_t count() const { return count_; }
    [[nodiscard]] uint64_t min() const { return count_ == 0 ? 0 : min_; }
    [[nodiscard]] uint64_t max() const { return max_; }
    [[nodiscard]] double mean() const;
    // The value that this percentage (0 to 100) of all values does not exceed; 0 if there are none.
    [[nodiscard]] uint64_t percentile(double percentage) const;

  private:
    // Values below 64 have a bucket each; above, each power of two is divided into 32.
    static constexpr unsigned fraction_bits = 5;
    static constexpr size_t buckets = (64 - fraction_bits + 1) << fraction_bits;
    static size_t bucket_of(uint64_t value);
    static uint64_t upper_end(size_t bucket);

    std::array<uint64_t, buckets> counts_{};
    uint64_t count_ = 0;
    uint64_t min_ = ~uint64_t{0};
    uint64_t max_ = 0;
    double sum_ = 0;
};

} // namespace util
