// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/streaming/plan.hpp"

#include <string_view>

#include <fmt/format.h>

namespace streaming {

namespace {

constexpr std::string_view units = "kmgt";

struct Short {
    uint64_t value;
    uint64_t tenth;
    std::string unit;
};

Short shorten(uint64_t number, uint64_t base) {
    Short result{number, 0, {}};
    for (const char unit : units) {
        if (result.value < base) {
            break;
        }
        result = {result.value / base, result.value % base * 10 / base, std::string(1, unit)};
    }
    return result;
}

// The number of repetitions for a transfer of this size, so that all tests take about the same time.
uint64_t repetitions(size_t size) {
    if (size < 1 << 10) {
        return 100000;
    }
    if (size < 64 << 10) {
        return 10000;
    }
    return size < 1 << 20 ? 1000 : 100;
}

std::vector<size_t> sizes(bool all) {
    if (!all) {
        return {64, 4 << 10, 64 << 10, 1 << 20};
    }
    std::vector<size_t> list{64};
    for (size_t power = 128; power <= 4 << 20; power *= 2) {
        list.push_back(power);
        list.push_back(power + power / 2);
    }
    return list;
}

} // namespace

std::string short_bytes(uint64_t bytes) {
    const auto [value, tenth, unit] = shorten(bytes, 1024);
    return tenth != 0 && value < 10 ? fmt::format("{}.{}{}", value, tenth, unit) : fmt::format("{}{}", value, unit);
}

std::string short_count(uint64_t count) {
    const auto [value, tenth, unit] = shorten(count, 1000);
    return fmt::format("{}{}", value, unit);
}

std::vector<Group> make_plan(const Options& options) {
    if (options.custom) {
        return {{{{"custom", options.size, options.transfers, options.iterations}}, options.inline_size}};
    }
    Group latency;
    Group bandwidth;
    for (const size_t size : sizes(options.all)) {
        const uint64_t usual = repetitions(size);
        latency.tests.push_back({short_bytes(size) + "_lat", size, 1, options.series_iterations.value_or(usual)});
        bandwidth.tests.push_back({short_bytes(size) + "_bw", size, options.series_transfers.value_or(usual), 1});
    }
    if (!options.kernel) {
        // Inline gives small transfers the lowest latency, but many of them are faster without it.
        latency.inline_size = options.inline_size.value_or(64);
        bandwidth.inline_size = options.inline_size.value_or(0);
    }
    return {std::move(latency), std::move(bandwidth)};
}

} // namespace streaming
