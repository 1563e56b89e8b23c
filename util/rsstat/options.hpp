// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The command line of rsstat.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace rsstat {

enum class View { sockets, processes, reasons, json, prometheus };

struct Options {
    View view = View::sockets;
    std::vector<pid_t> pids;             // none: all
    std::optional<unsigned> interval;    // seconds
    std::optional<unsigned> repetitions; // none: until interrupted
    bool help = false;
    bool version = false;
};

Options parse_options(const std::vector<std::string>& arguments);
std::string help_text(const std::string& program);

} // namespace rsstat
