// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The programs of rdma-core (Debian's rdmacm-utils) run as they are on this library, when it is preloaded at both ends:
// they verify what they receive, and their exit statuses count. They need a port, which is looked for.
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fabtests/common/pattern.hpp"
#include "fabtests/common/test.hpp"
#include "util/test/process.hpp"

namespace {

using namespace fabtests;
using util_test::Process;

constexpr const char* folder = "/usr/bin/";

const char* library() {
    const char* path = getenv("RSOCKET_LIBRARY");
    EXPECT(path != nullptr && access(path, R_OK) == 0);
    return path;
}

void need(const std::string& program) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    throw Skip("a library with a sanitizer cannot be preloaded into a program without");
#endif
    if (access((folder + program).c_str(), X_OK) != 0) {
        EXPECT(getenv("CI") == nullptr); // where it has to be
        throw Skip(program + " is not here; Debian has it in rdmacm-utils");
    }
}

std::unique_ptr<Process> start(const std::string& program, const std::vector<std::string>& arguments) {
    std::vector<std::string> all{std::string("LD_PRELOAD=") + library(), folder + program};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return std::make_unique<Process>("/usr/bin/env", all);
}

uint16_t free_port() {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    socklen_t length = sizeof(address);
    const bool bound = bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
                       getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0;
    close(fd);
    EXPECT(bound);
    return ntohs(address.sin_port);
}

// Whether anyone listens on a port of this machine: with the tcp core, that is a socket of the kernel's.
bool listened_on(uint16_t port) {
    for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
        std::ifstream file(table);
        for (std::string line; std::getline(file, line);) {
            std::istringstream words(line);
            std::string number;
            std::string local;
            std::string remote;
            std::string state;
            words >> number >> local >> remote >> state;
            const size_t at = local.rfind(':');
            if (state == "0A" && at != std::string::npos && std::stoul(local.substr(at + 1), nullptr, 16) == port) {
                return true;
            }
        }
    }
    return false;
}

struct Server {
    std::unique_ptr<Process> process;
    std::string port;
};

// One that listens. A port that was free a moment ago may be taken by now: then it ends, and another one is tried.
Server serve(const std::string& program, const std::vector<std::string>& arguments) {
    for (int tries = 0; tries < 5; ++tries) {
        const uint16_t port = free_port();
        std::vector<std::string> all{"-p", std::to_string(port)};
        all.insert(all.end(), arguments.begin(), arguments.end());
        Server server{start(program, all), std::to_string(port)};
        const auto began = Clock::now();
        while (server.process->running()) {
            if (listened_on(port)) {
                return server;
            }
            EXPECT(milliseconds_since(began) < patience(20000));
            usleep(10000);
        }
    }
    throw Failure(program + " does not listen on any port");
} // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks): the process that is given up ends with its owner

void expect_well(Process& process) {
    if (const int status = process.status(); status != 0) {
        throw Failure("status " + std::to_string(status) + ": " + process.text());
    }
}

// Both ends with the same options; each prints a line with figures for each size, in each direction of the test.
void stream(const std::string& program, const std::vector<std::string>& options, const std::string& row) {
    need(program);
    Server server = serve(program, options);
    std::vector<std::string> all{"-s", "127.0.0.1", "-p", server.port};
    all.insert(all.end(), options.begin(), options.end());
    const auto client = start(program, all);
    expect_well(*client);
    expect_well(*server.process);
    EXPECT(util_test::count_lines(client->output(), row) >= 1);
    EXPECT(util_test::count_lines(server.process->output(), row) >= 1);
    EXPECT(!util_test::holds(client->errors() + server.process->errors(), "failed"));
}

// Those that do not block spin, and riostream does always, on its memory. That takes its time where two processors are
// shared: a few messages suffice.
std::vector<std::string> few(const std::string& way, const std::string& size) {
    return {"-T", "v", "-T", way, "-S", size, "-I", "20", "-C", "3"};
}

void test_rstream_verifies_all_its_sizes() { stream("rstream", {"-T", "v", "-T", "b"}, "1m_bw"); }
void test_rstream_verifies_with_poll() { stream("rstream", few("a", "65536"), "custom"); }
void test_rstream_verifies_without_blocking() { stream("rstream", few("n", "12345"), "custom"); }
void test_rstream_verifies_with_other_buffers() {
    stream("rstream", {"-T", "v", "-T", "b", "-B", "5000", "-S", "100000", "-I", "20", "-C", "5"}, "custom");
}
void test_rstream_takes_keepalive_and_inline_sizes() {
    stream("rstream", {"-T", "v", "-T", "b", "-k", "5", "-i", "64", "-S", "64", "-I", "100", "-C", "10"}, "custom");
}
void test_riostream_verifies_with_blocking_calls() { stream("riostream", few("b", "1000000"), "custom"); }
void test_riostream_verifies_with_poll() { stream("riostream", few("a", "65536"), "custom"); }
void test_riostream_verifies_without_blocking() { stream("riostream", few("n", "12345"), "custom"); }

void test_rcopy_copies_files_one_after_another() {
    need("rcopy");
    std::string work = std::filesystem::temp_directory_path() / "rcopy-XXXXXX";
    EXPECT(mkdtemp(work.data()) != nullptr);
    struct Remove {
        const std::string& path;
        ~Remove() {
            std::error_code ignored;
            std::filesystem::remove_all(path, ignored);
        }
    } const remove{work};
    const Server server = serve("rcopy", {});
    for (const size_t size : std::array<size_t, 3>{1, 65536, 5000001}) {
        std::vector<char> data(size);
        fill(data.data(), data.size(), size);
        std::ofstream(work + "/source", std::ios::binary).write(data.data(), static_cast<std::streamsize>(size));
        const auto client = start("rcopy", {work + "/source", "127.0.0.1:" + work + "/copy", "-p", server.port});
        expect_well(*client);
        std::ifstream copy(work + "/copy", std::ios::binary);
        const std::vector<char> got((std::istreambuf_iterator<char>(copy)), std::istreambuf_iterator<char>());
        EXPECT(got == data);
        std::filesystem::remove(work + "/copy");
    }
    EXPECT(server.process->running()); // until it is ended: so it is made
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_rstream_verifies_all_its_sizes),
        FABTEST(test_rstream_verifies_with_poll),
        FABTEST(test_rstream_verifies_without_blocking),
        FABTEST(test_rstream_verifies_with_other_buffers),
        FABTEST(test_rstream_takes_keepalive_and_inline_sizes),
        FABTEST(test_riostream_verifies_with_blocking_calls),
        FABTEST(test_riostream_verifies_with_poll),
        FABTEST(test_riostream_verifies_without_blocking),
        FABTEST(test_rcopy_copies_files_one_after_another),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
