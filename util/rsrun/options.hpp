// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The command line of rsrun.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace rsrun {

struct Options {
    // The paths that connections may be upgraded to. automatic: shared memory, and the fabric if this machine supports
    // it; fabric: the same, but it is an error without a fabric; memory: shared memory alone.
    enum class Path { automatic, memory, fabric };
    Path path = Path::automatic;
    std::string core;                    // empty: verbs, if there is a device
    std::optional<uint64_t> send_buffer; // bytes, for sockets on the fabric
    std::optional<uint64_t> recv_buffer;
    std::vector<std::string> only; // rules, all valid
    std::string config;            // empty: the administrator's file
    std::string log;
    bool explain = false;
    std::string explain_file; // empty: standard error
    bool verbose = false;
    bool help = false;
    bool version = false;
    std::vector<std::string> command; // the program and its arguments
};

// Throws a Failure that describes an error. With --help or --version nothing else is checked.
Options parse_options(const std::vector<std::string>& arguments);
std::string help_text(const std::string& program);

} // namespace rsrun
