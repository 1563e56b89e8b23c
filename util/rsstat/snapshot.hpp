// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// All processes with a page of counters, at one point in time.
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
    Addresses addresses; // "-" if unknown
};

// A process, as reported by one of its libraries: a process that uses both is listed twice.
struct ProcessView {
    pid_t pid = 0;
    ProcessFacts facts;
    Page page; // its sockets are moved to the list below
    std::vector<SocketView> sockets;
};

struct Snapshot {
    uint64_t taken_ns = 0;              // CLOCK_MONOTONIC
    std::vector<ProcessView> processes; // by process id, then by library
    unsigned refused = 0;               // pages of other users
    std::vector<pid_t> other_versions;  // processes whose library is of another version
};

// The given processes, or all if none are given.
Snapshot take_snapshot(const std::vector<pid_t>& wanted);

// Why a process that was asked for is not in the snapshot, for the user. Empty: it is.
std::string why_missing(const Snapshot& snapshot, pid_t pid);

// Whether the process can have created the page: the page is not older than the process, and belongs to its user, or to
// root if the process has changed its user since.
bool belongs_to(const Page& page, uid_t user, const ProcessFacts& facts);

// The process's counters since it started: of open and closed sockets.
struct Totals {
    uint64_t open = 0; // sockets, without listeners
    uint64_t by_path = 0;
    uint64_t over_fabric = 0; // part of by_path
    uint64_t listeners = 0;
    uint64_t bytes[2]{};        // received, sent
    uint64_t path_bytes[2]{};   // part of bytes
    uint64_t fabric_bytes[2]{}; // part of path_bytes
    uint64_t calls[2]{};
    uint64_t wakeups = 0;
    uint64_t blocked = 0; // sends that found no space; open sockets only
    uint64_t upgrades = 0;
    uint64_t returns = 0;
    uint64_t buffer_bytes = 0;
};
Totals totals_of(const ProcessView& process);

// The same socket in another snapshot. Null: it did not exist.
const SocketView* same_socket(const Snapshot& in, const ProcessView& process, const SocketView& socket);
const char* name_of(base::stats::Library library);
const ProcessView* same_process(const Snapshot& in, const ProcessView& process);

} // namespace rsstat
