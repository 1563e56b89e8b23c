// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A second process of a test: the same program is executed anew in a role, so that it shares no libfabric object with
// its parent and can have another environment. The two exchange lines over the child's standard input and output.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include <sys/types.h>

namespace fabtests {

class Child {
  public:
    // "NAME=value" sets a variable, "NAME" alone removes it.
    explicit Child(const std::string& role, const std::vector<std::string>& arguments = {},
                   const std::vector<std::string>& environment = {});
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;
    ~Child();

    void tell(const std::string& line);
    // The next line that the child writes; throws an Error if there is none in time.
    std::string hear(int timeout_ms = 20000);
    // Waits until the child exits by itself, with status 0. Throws its reported failure.
    void finish(int timeout_ms = 60000);
    // Kills the child and returns once it is gone.
    void kill();
    // Stops the child until it is sent SIGCONT, and returns once it is stopped.
    void stop();
    // Sends the child a signal.
    void interrupt(int signal);

  private:
    pid_t pid_ = -1;
    int to_ = -1;
    int from_ = -1;
    std::string heard_;
};

// The child's side.
void say(const std::string& line);
std::string listen_to_parent(int timeout_ms = 20000);

struct Role {
    const char* name;
    void (*play)(const std::vector<std::string>& arguments);
};
// The exit status if the program was started in a role: 0, or 1 after an exception, which is reported as "failed: ...".
std::optional<int> play_role(int argc, char** argv, std::span<const Role> roles);

// Runs a role to its end.
void run_in_child(const std::string& role, const std::vector<std::string>& environment,
                  const std::vector<std::string>& arguments = {});

} // namespace fabtests
