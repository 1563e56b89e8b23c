// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/common/histogram.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace util {

size_t Histogram::bucket_of(uint64_t value) {
    const auto width = static_cast<unsigned>(std::bit_width(value));
    if (width <= fraction_bits + 1) {
        return static_cast<size_t>(value);
    }
    const unsigned shift = width - fraction_bits - 1; // keeps the leading one and fraction_bits more
    return (static_cast<size_t>(shift) << fraction_bits) + static_cast<size_t>(value >> shift);
}

uint64_t Histogram::upper_end(size_t bucket) {
    if (bucket < (size_t{2} << fraction_bits)) {
        return bucket;
    }
    const size_t shift = (bucket >> fraction_bits) - 1;
    const uint64_t leading = bucket - (shift << fraction_bits);
    return ((leading + 1) << shift) - 1;
}

void Histogram::record(uint64_t value) {
    ++counts_[bucket_of(value)];
    ++count_;
    min_ = std::min(min_, value);
    max_ = std::max(max_, value);
    sum_ += static_cast<double>(value);
}

void Histogram::merge(const Histogram& other) {
    for (size_t i = 0; i < buckets; ++i) {
        counts_[i] += other.counts_[i];
    }
    count_ += other.count_;
    min_ = std::min(min_, other.min_);
    max_ = std::max(max_, other.max_);
    sum_ += other.sum_;
}

double Histogram::mean() const { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }

uint64_t Histogram::percentile(double percentage) const {
    const double wanted = std::clamp(percentage, 0.0, 100.0) / 100 * static_cast<double>(count_);
    const auto rank = std::max<uint64_t>(1, static_cast<uint64_t>(std::ceil(wanted)));
    uint64_t seen = 0;
    for (size_t i = 0; i < buckets && count_ != 0; ++i) {
        seen += counts_[i];
        if (seen >= rank) {
            return std::clamp(upper_end(i), min_, max_);
        }
    }
    return max();
}

} // namespace util
