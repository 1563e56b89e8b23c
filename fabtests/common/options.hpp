// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The command line that the fi_stream_* programs share, after the manner of fabtests.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fabtests {

// Whom the stream runs over.
enum class Kind { stream, core, kernel };

struct Options {
    std::string program;
    std::string provider = "rstream"; // or the name of a core provider, or "kernel" for plain sockets
    std::string core;                 // -c: below rstream
    std::string domain;               // -d
    std::string source;               // -s: our own address
    std::string host;                 // the server's address; a server has none
    std::string port = "9228";        // -P, -B
    std::string port_file;            // where a server writes its port once it listens
    size_t size = 65536;              // -S
    size_t iterations = 1000;         // -I
    size_t warmup = 10;               // -w
    size_t buffers = 0;               // -b; 0: the provider's default
    bool poll = false;                // --wait poll
    bool json = false;                // --json
    bool verify = false;              // -v
    bool iwarp = false;               // --iwarp
    int timeout = 60;                 // -t seconds for the whole run
    std::string file;                 // programs that read or write one

    [[nodiscard]] bool is_client() const { return !host.empty(); }
    [[nodiscard]] Kind kind() const;
};

// Parses, or prints why not and exits with status 1; --help exits with 0. `purpose` is the first line of the help;
// `file_help` the help of -f, empty if there is none.
Options parse_options(int argc, char** argv, const char* purpose, const Options& defaults, const char* file_help = "");

// Tells whoever started a server where it listens: one line on stdout, and the port file if one was asked for.
void announce_port(const Options& options, uint16_t port);

// Runs a program's body: an exception becomes one line on stderr and exit status 1; so does the time limit.
int run(const Options& options, const std::function<int()>& body);

} // namespace fabtests
