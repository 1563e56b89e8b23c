// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Finds pages of counters: the kernel lists the segments of shared memory and their creators.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <sys/types.h>

namespace rsstat {

struct Segment {
    int id = -1;
    pid_t creator = 0;
    uid_t user = 0; // creator
    uint64_t bytes = 0;
};

// Parses a line of /proc/sysvipc/shm. No value: it cannot be a page.
std::optional<Segment> parse_segment(const std::string& line);

// Attaches each segment that this user may read and calls body with it. For root: in all namespaces. Returns the number
// of segments that this user may not read.
unsigned for_each_segment(const std::function<void(const Segment&, const void*)>& body);

} // namespace rsstat
