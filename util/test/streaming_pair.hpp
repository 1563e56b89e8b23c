// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The two ends of rstream or riostream: ours, and those of rdma-core, which run on our library when it is preloaded.
#pragma once

#include <string>
#include <vector>

#include "util/test/network.hpp"
#include "util/test/process.hpp"

namespace util_test {

using Words = std::vector<std::string>;
inline Words operator+(Words a, const Words& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

struct StreamServer : Process {
    explicit StreamServer(const std::string& program, const Words& more = {}, const std::string& address = "127.0.0.1")
        : Process(program, Words{"-b", address, "-p", "0"} + more), port(port_of(*this)) {}
    std::string port;
};

struct StreamClient : Process {
    explicit StreamClient(const std::string& program, const std::string& port, const Words& more = {},
                          const std::string& address = "127.0.0.1")
        : Process(program, Words{"-s", address, "-p", port} + more) {}
};

// A program of rdma-core on our library; on the kernel's sockets if the words say so. Skips if it is not installed, or
// cannot take the preloaded library.
struct RdmaCoreServer : Process {
    RdmaCoreServer(const std::string& program, const HeldPort& port, const Words& more);
};
struct RdmaCoreClient : Process {
    RdmaCoreClient(const std::string& program, const std::string& port, const Words& more);
};

// The first five columns of the only row whose name is this: all but the times.
std::string columns(const Process& process, const std::string& name);

// Both ends succeed, and tell the same of a test called custom.
void expect_agreement(Process& client, Process& server);

} // namespace util_test
