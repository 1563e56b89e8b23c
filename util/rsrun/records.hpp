// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What the preload libraries tell of a program's sockets: a line for each TCP socket, appended to the file that
// RSPRELOAD_EXPLAIN names, with thirteen columns separated by tabs: process id, program, descriptor, role (connect,
// listen or accept), local address, peer's address, path (shm, kernel, or the name of a fabric's core), upgrades,
// returns to the kernel, milliseconds from connect or accept to the first upgrade, bytes sent, bytes received, reason.
// What does not apply is "-".
#pragma once

#include <string>
#include <vector>

namespace rsrun {

struct Records {
    std::vector<std::string> lines; // as people read them
    size_t upgraded = 0;            // of them
    size_t damaged = 0;             // lines that are no records
};

Records read_records(const std::string& text);

// Lines and a summary.
std::string explanation(const Records& records);

} // namespace rsrun
