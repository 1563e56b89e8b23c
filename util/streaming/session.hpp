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

// How a test moves its bytes. The object exists for the whole run.
class Exchange {
  public:
    virtual ~Exchange() = default;
    // Sets up a socket before it listens or connects.
    virtual void prepare(Socket& /*socket*/) {}
    // Begins a test: allocates buffers, and exchanges the 16 bytes after which both ends are ready.
    virtual void begin(Socket& socket, const Test& test) = 0;
    // Transfer all of one direction.
    virtual void send() = 0;
    virtual void receive() = 0;
    // Called when the test is complete.
    virtual void end() {}
    // Called when the test has failed, before the connection is closed.
    virtual void abandon() {}
    // Called when a child process has run the test.
    virtual void pass_over(const Test& /*test*/) {}
};

class Session {
  public:
    Session(std::string program, const Options& options, Exchange& exchange)
        : program_(std::move(program)), options_(options), exchange_(exchange), plan_(make_plan(options)) {}
    // Returns the exit status. Throws a Failure if it ends early.
    int run();

  private:
    void print_header() const;
    int run_client();
    int run_server();
    int serve(Socket& listener, const Group& group);
    void run_group(Socket& socket, const Group& group);
    Result run_test(Socket& socket, const Test& test);
    [[nodiscard]] util::Address resolve(const char* option, const std::string& node, uint16_t port, int family,
                                        bool passive) const;
    [[nodiscard]] Socket make_socket(int family, const Group& first) const;

    std::string program_; // argv[0]
    const Options& options_;
    Exchange& exchange_;
    std::vector<Group> plan_;
};

// main() of both programs.
using MakeExchange = std::unique_ptr<Exchange> (*)(const Options& options);
int run_program(Program program, int argc, char** argv, MakeExchange make_exchange);

} // namespace streaming
