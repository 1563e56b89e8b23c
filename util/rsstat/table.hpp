// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Formats a snapshot as tables for people.
#pragma once

#include <string>

#include "util/rsstat/snapshot.hpp"

namespace rsstat {

// With before, shows rates since then instead of totals.
std::string sockets_text(const Snapshot& now, const Snapshot* before);
std::string processes_text(const Snapshot& now, const Snapshot* before);

// shm, kernel, or both if the two directions differ; for a socket of librsocket-ofi the core and its device.
std::string path_of(const Socket& socket);
const char* name_of(base::stats::Role role);

// The rate between the two values; 0 if they are inconsistent.
double rate(uint64_t before, uint64_t now, uint64_t ns);

std::string short_number(uint64_t value); // 1234567 is 1.2M
std::string short_bytes(uint64_t value);  // in units of 1024
std::string short_time(uint64_t ns);      // 90 s is 1m30

} // namespace rsstat
