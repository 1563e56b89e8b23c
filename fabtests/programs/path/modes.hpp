// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What can be measured, and with which options.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fabtests/programs/path/channel.hpp"
#include "fabtests/programs/path/team.hpp"
#include "util/common/json.hpp"

namespace path_bench {

struct Options {
    std::string mode;
    size_t size = 64; // of a message
    Wait wait = Wait::block;
    uint64_t iterations = 10000;
    uint64_t warm = 0;        // exchanges on each connection that are not measured
    uint64_t settle_ms = 200; // of many, behind the exchanges that are not measured
    uint64_t bytes = 256 << 20;
    uint64_t connections = 100;
    uint64_t pairs = 2;
    uint64_t duration_ms = 1000;
    unsigned limit = 60; // seconds
    bool help = false;
};

// Each makes its processes, waits for them, and gives the figures of the one JSON object.
util::Json pingpong(const Options& options);
util::Json stream(const Options& options);
util::Json many(const Options& options);
util::Json pairs(const Options& options);
util::Json fairness(const Options& options);

// What modes share.

// Answers each message of the size with its copy, until the stream ends or there were so many.
void echo(Channel& channel, size_t size, uint64_t count = UINT64_MAX);

// The other end of echo().
class Exchange {
  public:
    Exchange(Channel& channel, size_t size) : channel_(channel), out_(size), in_(size) {}
    void repeat(uint64_t times);
    void once();

  private:
    Channel& channel_;
    std::vector<char> out_;
    std::vector<char> in_;
    uint64_t sequence_ = 0;
};

// The median, the 99th percentile, the largest and the mean: {} for none.
Figures distribution(std::vector<double>& values);

} // namespace path_bench
