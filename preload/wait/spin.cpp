// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/wait/spin.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include <sched.h>

namespace preload::spin {

namespace detail {

constinit thread_local Experience experience;

} // namespace detail

namespace {

constexpr uint32_t default_ns = 100000;
constexpr uint32_t unknown = UINT32_MAX;
constinit std::atomic<uint32_t> longest{unknown};

uint32_t find_max() {
    const char* given = getenv("RSPRELOAD_SPIN"); // microseconds
    uint32_t wanted = default_ns;
    if (given != nullptr && *given >= '0' && *given <= '9') {
        wanted = static_cast<uint32_t>(std::min(strtoul(given, nullptr, 10), 10000UL)) * 1000;
    }
    cpu_set_t processors;
    CPU_ZERO(&processors);
    return sched_getaffinity(0, sizeof(processors), &processors) == 0 && CPU_COUNT(&processors) < 2 ? 0 : wanted;
}

} // namespace

uint32_t max_ns() {
    uint32_t known = longest.load(std::memory_order_relaxed);
    if (known == unknown) [[unlikely]] {
        known = find_max();
        longest.store(known, std::memory_order_relaxed);
    }
    return known;
}

} // namespace preload::spin
