// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/test/streaming_pair.hpp"

#include <cstdlib>

#include <link.h>
#include <unistd.h>

#include "fabtests/common/test.hpp"

namespace util_test {

namespace {

// Where this program is instrumented, its library needs the same runtimes, of which that for memory or threads must be
// the first of a process.
std::string sanitizer_runtime() {
    std::string found;
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t /*size*/, void* to) {
            const std::string name = info->dlpi_name;
            auto& runtimes = *static_cast<std::string*>(to);
            const bool clangs = name.find("libclang_rt.") != std::string::npos;
            if (clangs || name.find("libasan") != std::string::npos || name.find("libtsan") != std::string::npos) {
                runtimes.insert(0, name + ":");
            } else if (name.find("libubsan") != std::string::npos) {
                runtimes += name + ":";
            }
            return 0;
        },
        &found);
    return found;
}

std::string path_of(const std::string& program) {
    std::string path = "/usr/bin/" + program;
    if (access(path.c_str(), X_OK) != 0) {
        throw fabtests::Skip("no " + path + " of rdma-core here");
    }
    return path;
}

Words preload() {
    const char* library = getenv("RSOCKET_LIBRARY");
    if (library == nullptr) {
        throw fabtests::Failure("RSOCKET_LIBRARY is to name librsocket-ofi.so");
    }
    // What those programs leave behind is not ours to judge.
    return {"LD_PRELOAD=" + sanitizer_runtime() + library, "ASAN_OPTIONS=detect_leaks=0"};
}

} // namespace

RdmaCoreServer::RdmaCoreServer(const std::string& program, const HeldPort& port, const Words& more)
    : Process(path_of(program), Words{"-b", "127.0.0.1", "-p", port.port} + more, preload()) {
    port.await_listener();
}

RdmaCoreClient::RdmaCoreClient(const std::string& program, const std::string& port, const Words& more)
    : Process(path_of(program), Words{"-s", "127.0.0.1", "-p", port} + more, preload()) {}

std::string columns(const Process& process, const std::string& name) {
    constexpr size_t width = 42; // up to the time
    const size_t at = process.output().find("\n" + name + " ");
    if (at == std::string::npos) {
        throw fabtests::Failure(process.text() + "---\nthere is no row " + name);
    }
    return process.output().substr(at + 1, width);
}

void expect_agreement(Process& client, Process& server) {
    expect_success(client);
    expect_success(server);
    EXPECT_EQ(columns(client, "custom"), columns(server, "custom"));
}

} // namespace util_test
