// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The command lines of rstream and riostream, which share most options.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "util/common/program.hpp"

namespace streaming {

constexpr size_t max_size = size_t{1} << 30;
constexpr uint64_t max_count = 1000000000;

enum class Program { rstream, riostream };

// How the calls wait: by repeating, by blocking in the kernel or library, or after a poll.
enum class Mode { nonblocking, blocking, asynchronous };

struct Options {
    Program program = Program::rstream;
    std::string server; // empty: this is the server
    std::string bind;
    util::AddressFormat format = util::AddressFormat::any;
    uint16_t port = 7471;
    size_t buffers = size_t{512} << 10; // bytes of SO_SNDBUF, and of SO_RCVBUF
    std::optional<int> inline_size;     // bytes
    std::optional<int> keepalive;       // seconds
    bool all = false;                   // run a long series of sizes
    // A single test instead of a series.
    bool custom = false;
    size_t size = 1000;        // bytes of a transfer
    uint64_t transfers = 1000; // in one direction, before it changes
    uint64_t iterations = 1;   // round trips
    // -C and -I for the tests of -S all, which otherwise have counts of their own.
    std::optional<uint64_t> series_transfers;
    std::optional<uint64_t> series_iterations;
    Mode mode = Mode::nonblocking;
    bool kernel = false; // kernel sockets instead of rsockets
    bool fork = false;
    bool resolve = false;
    bool verify = false;
    bool histogram = false;
    util::CommonOptions common;

    [[nodiscard]] bool is_client() const { return !server.empty(); }
};

// Throws a Failure that describes an error. With --help or --version nothing else is checked.
Options parse_options(Program program, const std::vector<std::string>& arguments);
std::string help_text(Program program, const std::string& name);

} // namespace streaming
