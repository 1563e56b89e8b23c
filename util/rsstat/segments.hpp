// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Where pages of counters are: the kernel lists the segments of shared memory, and who has made each.
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
    uid_t user = 0; // who has made it
    uint64_t bytes = 0;
};

// A line of /proc/sysvipc/shm. Nothing: it cannot be a page.
std::optional<Segment> parse_segment(const std::string& line);

// Calls body with each segment that this user may read, attached. Of all namespaces, for root. Returns how many others
// there are.
unsigned for_each_segment(const std::function<void(const Segment&, const void*)>& body);

} // namespace rsstat
