// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A snapshot as tables for people.
#pragma once

#include <string>

#include "util/rsstat/snapshot.hpp"

namespace rsstat {

// before: rates since then, in the place of what there was since the beginning.
std::string sockets_text(const Snapshot& now, const Snapshot* before);
std::string processes_text(const Snapshot& now, const Snapshot* before);

// shm, kernel, or both, where the two directions differ; the core and its device of a socket of librsocket-ofi.
std::string path_of(const Socket& socket);
const char* name_of(base::stats::Role role);

// What has been counted in between; 0 if that makes no sense.
double rate(uint64_t before, uint64_t now, uint64_t ns);

std::string short_number(uint64_t value); // 1234567 is 1.2M
std::string short_bytes(uint64_t value);  // of 1024
std::string short_time(uint64_t ns);      // 90 s is 1m30

} // namespace rsstat
