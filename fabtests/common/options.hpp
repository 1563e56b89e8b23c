// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The command line that the fi_stream_* programs share, in the style of fabtests.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fabtests {

// The transport of the stream.
enum class Kind { stream, core, kernel };

struct Options {
    std::string program;
    std::string provider = "rstream";   // or the name of a core provider, or "kernel" for plain sockets
    std::string core;                   // -c: the core provider of rstream
    std::string domain;                 // -d
    std::string source;                 // -s: the local address
    std::string host;                   // the server's address; empty for a server; or of both ends
    std::string port = "9228";          // -P, -B
    std::string port_file;              // file that a server writes its port to once it listens
    size_t size = 65536;                // -S
    const char* repeated = "transfers"; // what -I and -w count
    size_t iterations = 1000;           // -I
    size_t warmup = 10;                 // -w
    size_t buffers = 0;                 // -b; 0: the provider's default
    bool poll = false;                  // --wait poll
    bool json = false;                  // --json
    bool verify = false;                // -v
    bool iwarp = false;                 // --iwarp
    int timeout = 60;                   // -t seconds for the whole run
    std::string file;                   // -f: the file that a program reads or writes

    [[nodiscard]] bool is_client() const { return !host.empty(); }
    [[nodiscard]] Kind kind() const;
};

// Parses the command line, or prints an error and exits with status 1; --help exits with 0. `purpose` is the first line
// of the help; `file_help` the help of -f, empty if there is none.
Options parse_options(int argc, char** argv, const char* purpose, const Options& defaults, const char* file_help = "");

// Reports the port that a server listens on: one line on stdout, and the port file if one was requested.
void announce_port(const Options& options, uint16_t port);

// Runs a program's body: an exception, or the time limit, becomes one line on stderr and exit status 1.
int run(const Options& options, const std::function<int()>& body);

} // namespace fabtests
