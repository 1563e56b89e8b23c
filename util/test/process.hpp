// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// One of the programs under test: started, listened to, interrupted, and looked at when it has ended.
#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

#include "util/common/json.hpp"

namespace util_test {

class Process {
  public:
    // The program is one of the build folder, unless a path is given. Environment: "NAME=value", besides ours.
    Process(const std::string& program, const std::vector<std::string>& arguments,
            const std::vector<std::string>& environment = {});
    Process(const Process&) = delete;
    Process& operator=(const Process&) = delete;
    ~Process();

    // The next line of its standard output; a failure if there is none in time.
    std::string line();
    // Lines, until one begins like this; it is returned.
    std::string line_with(const std::string& beginning);
    void signal(int number) const;
    [[nodiscard]] bool running() const;
    // Waits until it ends by itself.
    int status();

    // All that was read so far, which is everything once status() has returned.
    [[nodiscard]] const std::string& output() const { return output_; }
    [[nodiscard]] const std::string& errors() const { return errors_; }
    // For a failure of a test.
    [[nodiscard]] std::string text() const;

  private:
    bool read_some(); // false once both pipes are closed

    std::string name_;
    pid_t pid_ = -1;
    int output_fd_ = -1;
    int errors_fd_ = -1;
    std::string output_;
    std::string errors_;
    size_t said_ = 0; // of output_, by line()
};

// Runs a program to its end.
struct Ended {
    int status;
    std::string output;
    std::string errors;
};
Ended run_program(const std::string& program, const std::vector<std::string>& arguments);

size_t count_lines(const std::string& text, const std::string& beginning = {});
// How often one text is in another one.
bool holds(const std::string& text, const std::string& part);

// That a program complains properly: exit status 1, and one line on its standard error that holds part.
void expect_complaint(const Ended& ended, const std::string& part);
void expect_complaint(Process& process, const std::string& part);
void expect_success(Process& process);

// The port in "listening on port N", which must be the next line.
std::string port_of(Process& server);
// The same of a server with --json.
std::string port_of_json(Process& server);

// The only line, as JSON; whether it has these members, with these values.
bool has_json(const Process& process, const util::Json& members);

} // namespace util_test
