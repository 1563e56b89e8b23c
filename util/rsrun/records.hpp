// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What the preload library tells of a program's sockets: a line for each, appended to the file that RSPRELOAD_EXPLAIN
// names, with eleven columns separated by tabs: process id, program, descriptor, role (connect, listen or accept),
// local address, peer's address, carried or kernel, core, bytes sent, bytes received, reason. What does not apply is
// "-".
#pragma once

#include <string>
#include <vector>

namespace rsrun {

struct Records {
    std::vector<std::string> lines; // as people read them
    size_t carried = 0;             // of them
    size_t damaged = 0;             // lines that are no records
};

Records read_records(const std::string& text);

// Lines and a summary.
std::string explanation(const Records& records);

} // namespace rsrun
