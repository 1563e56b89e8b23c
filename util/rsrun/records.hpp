// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The records that the preload libraries write for a program's sockets: a line for each TCP socket, appended to the
// file that RSPRELOAD_EXPLAIN names, with thirteen columns separated by tabs: process id, program, descriptor, role
// (connect, listen or accept), local address, peer's address, path (shm, kernel, or the name of a fabric's core),
// upgrades, returns to the kernel, milliseconds from connect or accept to the first upgrade, bytes sent, bytes
// received, reason. A column that does not apply is "-".
#pragma once

#include <string>
#include <vector>

namespace rsrun {

struct Records {
    std::vector<std::string> lines; // formatted for people
    size_t upgraded = 0;            // number of upgraded sockets
    size_t damaged = 0;             // number of malformed lines
};

Records read_records(const std::string& text);

// The lines and a summary.
std::string explanation(const Records& records);

} // namespace rsrun
