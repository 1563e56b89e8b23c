// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The tests of a run, their names, and the format of their numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "util/streaming/options.hpp"

namespace streaming {

struct Test {
    std::string name;
    size_t size = 0;
    uint64_t transfers = 0;
    uint64_t iterations = 0;

    // Both directions.
    [[nodiscard]] uint64_t all_transfers() const { return 2 * transfers * iterations; }
    [[nodiscard]] uint64_t bytes() const { return all_transfers() * size; }
};

// Tests that share a connection.
struct Group {
    std::vector<Test> tests;
    std::optional<int> inline_size;
};

// One group of one test if the options select it; otherwise one group for latency and one for bandwidth.
std::vector<Group> make_plan(const Options& options);

// The format of rdma-core's programs. Bytes are in units of 1024, with a tenth if there is one digit before it: 64,
// 1.5k, 78m. Counts are in units of 1000: 100k. Both are truncated, not rounded.
std::string short_bytes(uint64_t bytes);
std::string short_count(uint64_t count);

} // namespace streaming
