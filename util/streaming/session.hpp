// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A run of rstream or riostream, at either end: the series of tests, over one connection for each group.
#pragma once

#include <memory>
#include <optional>

#include "util/streaming/report.hpp"
#include "util/streaming/socket.hpp"

namespace streaming {

// How a test moves its bytes. It lives as long as the run.
class Exchange {
  public:
    virtual ~Exchange() = default;
    // What a socket needs before it listens or connects.
    virtual void prepare(Socket& /*socket*/) {}
    // A test begins: makes room, and exchanges the 16 bytes after which both ends are ready.
    virtual void begin(Socket& socket, const Test& test) = 0;
    // All transfers of one direction.
    virtual void send() = 0;
    virtual void receive() = 0;
    // The test is over.
    virtual void end() {}
    // The test has failed, and the connection is about to be closed.
    virtual void abandon() {}
    // The test was run by a child process.
    virtual void pass_over(const Test& /*test*/) {}
};

class Session {
  public:
    Session(std::string program, const Options& options, Exchange& exchange)
        : program_(std::move(program)), options_(options), exchange_(exchange), plan_(make_plan(options)) {}
    // The exit status. What ends it early is a Failure.
    int run();

  private:
    void tell_header() const;
    int run_client();
    int run_server();
    int serve(Socket& listener, const Group& group);
    void run_group(Socket& socket, const Group& group);
    Result run_test(Socket& socket, const Test& test);
    [[nodiscard]] util::Address resolve(const char* option, const std::string& node, uint16_t port, int family,
                                        bool passive) const;
    [[nodiscard]] Socket make_socket(int family, const Group& first) const;

    std::string program_; // as it was started
    const Options& options_;
    Exchange& exchange_;
    std::vector<Group> plan_;
};

// main() of both programs.
using MakeExchange = std::unique_ptr<Exchange> (*)(const Options& options);
int run_program(Program program, int argc, char** argv, MakeExchange make_exchange);

} // namespace streaming
