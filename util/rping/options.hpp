// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The command line of rping.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "util/common/program.hpp"

namespace rping {

// The minimum holds the text of a message; larger messages than the maximum are for a benchmark.
constexpr size_t min_size = 23;
constexpr size_t max_size = size_t{64} << 20;
// Defaults: between two ends of this package, and with a program of rdma-core, whose actual default differs from its
// manual.
constexpr size_t default_size = 100;
constexpr size_t default_size_of_others = 64;

struct Options {
    bool server = false;
    std::string address; // empty: a server listens on all
    std::string source;
    uint16_t port = 7174;
    bool verbose = false;
    bool validate = false;
    bool debug = false;
    uint64_t count = 0; // 0: unlimited
    size_t size = default_size;
    bool size_given = false;
    bool persistent = false;
    bool own_queues = false;
    util::CommonOptions common;
};

// Throws a Failure that describes an error. With --help or --version nothing else is checked.
Options parse_options(const std::vector<std::string>& arguments);
std::string help_text(const std::string& program);

} // namespace rping
