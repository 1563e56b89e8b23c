// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The counters of a process, copied from its page (base/stats_page.hpp) and checked. The process may write anything at
// any time: the size comes from the kernel, every loop is bounded by it, and invalid values are discarded.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/stats_page.hpp"

namespace rsstat {

struct Traffic {
    uint64_t bytes = 0;
    uint64_t path_bytes = 0; // part of bytes
    uint64_t calls = 0;
    uint64_t wakeups = 0;
    uint64_t blocked = 0;
    uint64_t buffer_bytes = 0;
};

struct Socket {
    uint32_t row = 0;
    int fd = -1;
    base::stats::Role role = base::stats::Role::none;
    uint32_t path = 0;        // base::stats::receives_by_path, sends_by_path
    bool over_fabric = false; // the preload library's path is, was or may become one to another host
    uint32_t reason = 0;
    uint32_t upgrades = 0;
    uint32_t returns = 0;
    uint64_t began_ns = 0;
    uint64_t sleeps = 0;
    Traffic in;
    Traffic out;
    // For librsocket-ofi only, whose sockets the kernel does not know; otherwise "-" and empty.
    std::string local = "-";
    std::string peer = "-";
    std::string device;
};

struct Ended {
    uint64_t sockets = 0;
    uint64_t upgraded = 0;
    std::array<uint64_t, 2> bytes{};
    std::array<uint64_t, 2> path_bytes{};   // part of bytes
    std::array<uint64_t, 2> fabric_bytes{}; // part of path_bytes: by the preload library's path to other hosts
    std::array<uint64_t, 2> calls{};
    uint64_t wakeups = 0;
    uint64_t sleeps = 0;
    uint64_t upgrades = 0;
    uint64_t returns = 0;
    std::array<uint64_t, base::stats::max_reasons> reasons{};
};

struct Page {
    base::stats::Library library = base::stats::Library::preload;
    uint64_t made_ns = 0;
    uint64_t without_row = 0;
    uint64_t sleeps = 0;
    uint64_t slept_ns = 0;
    uint64_t torn = 0; // rows that changed during every read
    Ended ended;
    std::vector<Socket> sockets;
};

// No value: it is not a page, or one of another version.
std::optional<Page> read_page(const void* memory, size_t size);
bool is_of_other_version(const void* memory, size_t size);

} // namespace rsstat
