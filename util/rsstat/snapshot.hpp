// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// All processes with a page of counters, at one moment.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "util/rsstat/page.hpp"
#include "util/rsstat/process.hpp"

namespace rsstat {

struct SocketView {
    Socket counters;
    Addresses addresses; // "-" where they are not known
};

// A process, as one of its libraries tells of it: one that uses both is there twice.
struct ProcessView {
    pid_t pid = 0;
    ProcessFacts facts;
    Page page; // its sockets are moved to those below
    std::vector<SocketView> sockets;
};

struct Snapshot {
    uint64_t taken_ns = 0;              // CLOCK_MONOTONIC
    std::vector<ProcessView> processes; // by process id, then by library
    unsigned refused = 0;               // pages of other users
};

// Those of the processes given, or of all.
Snapshot take_snapshot(const std::vector<pid_t>& wanted);

// Whether the process can have made the page: it is not older than the process, and of its user, or of root's, if it
// has become another user since.
bool belongs_to(const Page& page, uid_t user, const ProcessFacts& facts);

// The process's counters since it began: of sockets that are open and of those that are closed.
struct Totals {
    uint64_t open = 0; // sockets, without listeners
    uint64_t by_path = 0;
    uint64_t over_fabric = 0; // of them
    uint64_t listeners = 0;
    uint64_t bytes[2]{}; // received, sent
    uint64_t path_bytes[2]{};
    uint64_t calls[2]{};
    uint64_t wakeups = 0;
    uint64_t blocked = 0; // of open sockets
    uint64_t upgrades = 0;
    uint64_t returns = 0;
    uint64_t buffer_bytes = 0;
};
Totals totals_of(const ProcessView& process);

// The same socket in another snapshot. Null: it was not there.
const SocketView* same_socket(const Snapshot& in, const ProcessView& process, const SocketView& socket);
const char* name_of(base::stats::Library library);
const ProcessView* same_process(const Snapshot& in, const ProcessView& process);

} // namespace rsstat
