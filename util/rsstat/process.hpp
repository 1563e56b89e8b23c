// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What the kernel reports about a process and its sockets, independent of the process itself.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <sys/types.h>

namespace rsstat {

struct ProcessFacts {
    std::string program;     // printable characters only
    uint64_t started_ns = 0; // CLOCK_BOOTTIME
    uid_t real_user = 0;
    uid_t effective_user = 0;
    uint64_t pinned_bytes = 0; // VmPin: pinned for devices
    uint64_t locked_bytes = 0; // VmLck: mlock(2)
};

// No value: there is no such process.
std::optional<ProcessFacts> facts_of(pid_t pid);

// Makes text that other programs have written safe for a terminal.
std::string printable(std::string_view text);

struct Addresses {
    std::string local;
    std::string peer;
    uint64_t receive_queue = 0;
    uint64_t send_queue = 0;
};

// Parses a line of /proc/net/tcp or tcp6. No value: it is invalid.
std::optional<std::pair<uint64_t, Addresses>> parse_tcp_line(const std::string& line);

// The kernel's TCP sockets, by network namespace, read at the first query.
class KernelSockets {
  public:
    // Null: unknown, since the process belongs to another user, or the socket is not a TCP socket.
    const Addresses* find(pid_t pid, int fd);

  private:
    using Table = std::unordered_map<uint64_t, Addresses>; // by inode
    std::map<std::string, Table> tables_;                  // by namespace
    pid_t last_pid_ = -1;
    const Table* last_ = nullptr;
};

} // namespace rsstat
