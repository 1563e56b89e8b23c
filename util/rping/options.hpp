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

// The text of a message must fit; more than this at once is a benchmark's business.
constexpr size_t min_size = 23;
constexpr size_t max_size = size_t{64} << 20;
// When nothing is said: between two of ours, and with a program of rdma-core, which has another default than its
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
    uint64_t count = 0; // 0: without end
    size_t size = default_size;
    bool size_given = false;
    bool persistent = false;
    bool own_queues = false;
    util::CommonOptions common;
};

// A Failure says what is wrong. With --help or --version nothing else is looked at.
Options parse_options(const std::vector<std::string>& arguments);
std::string help_text(const std::string& program);

} // namespace rping
