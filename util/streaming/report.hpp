// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The results of a test, as a row of a table with the columns of rdma-core's programs, or as a line of JSON.
#pragma once

#include <string>

#include "util/common/backend.hpp"
#include "util/common/histogram.hpp"
#include "util/streaming/plan.hpp"

namespace streaming {

struct Result {
    Test test;
    util::Clock::duration time{};
    // Time of a transfer, one way, in nanoseconds: the mean of each iteration. Only with --histogram.
    util::Histogram latency;
};

std::string header_row(const Options& options);
std::string result_row(const Options& options, const Result& result);
std::string result_json(const Options& options, const Result& result);

} // namespace streaming
