// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Which TCP connections of a program may take a faster path than the kernel's. RSPRELOAD_RULES says so in rules
// separated by blanks; where it is not set, the administrator's file does (RSPRELOAD_CONFIG, or preload_config in the
// folder of the library's settings), whose lines are
//
//     PROGRAM DOMAIN TYPE PROTOCOL    as in rdma-core's file of this name: sockets of no such line stay with the kernel
//     [upgrade] RULE                  an address that is upgraded; with such lines, no other one is
//     kernel RULE                     an address that is not
//
// The first rule that matches decides. Where there is none, any connection may be upgraded. A line that cannot be read
// is left out, and the log (RSPRELOAD_LOG) names it.
//
// Needs nothing but libc, and no memory but two mappings. All of it may be called from any thread, from signal
// handlers, and before constructors have run.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <limits.h>
#include <sys/socket.h>

#include "preload/rules/rule.hpp"

namespace preload {

struct Decision {
    Verdict verdict;
    const char* reason; // never null, and lives as long as the program
};

// Where a line that cannot be read is named.
struct Report {
    void (*say)(void* context, const char* line) = nullptr;
    void* context = nullptr;
};

class Rules {
  public:
    // Those of this process: read at the first call, and the same ever after.
    static const Rules& get();

    // The arguments of socket(); a type may have SOCK_NONBLOCK and SOCK_CLOEXEC in it.
    [[nodiscard]] Decision for_socket(int domain, int type, int protocol) const;
    // Whether a connection that the kernel has made may leave it; server is the address of the side that listened: the
    // connecting end's peer, the accepting end's own.
    [[nodiscard]] Decision for_upgrade(const sockaddr* server, socklen_t length) const;

    // How get() makes them. The rules of a RSPRELOAD_RULES; false if there is nothing but blanks in it.
    bool add_words(std::string_view words, const Report& report);
    // The lines of a file; program is whose sockets are meant, source how the report calls the file.
    void add_lines(std::string_view lines, std::string_view program, const char* source, const Report& report);

    // The base name of the program's file, which a program cannot change, unlike its title. Empty if it is not known.
    [[nodiscard]] const char* program() const { return program_; }

  private:
    // rdma-core's columns; -1 stands for any.
    struct Kind {
        int domain = -1;
        int type = -1;
        int protocol = -1;
    };
    // Fixed, so that no memory is asked for.
    static constexpr size_t max_rules = 256;
    static constexpr size_t max_kinds = 64;

    void load(const Report& report);
    void load_file(const char* path, bool named, const Report& report);
    void add_line(std::string_view line, std::string_view program, const struct Place& place);
    void add_kind(const std::string_view* columns, std::string_view program, const struct Place& place);
    bool add_rule(std::string_view text, Verdict verdict, const struct Place& place);
    bool add_parsed(const Rule& rule, std::string_view text, const struct Place& place);
    bool add_host(const Rule& rule, std::string_view host, std::string_view text, const struct Place& place);
    void find_program();
    [[nodiscard]] const Rule* first_match(const Endpoint& endpoint) const;

    std::array<Rule, max_rules> rules_{};
    size_t rule_count_ = 0;
    bool only_ = false; // what no rule names stays with the kernel
    std::array<Kind, max_kinds> kinds_{};
    size_t kind_count_ = 0;
    bool listed_ = false;               // sockets of no kind stay with the kernel
    std::array<char, PATH_MAX> path_{}; // of the program: here, since a signal handler's stack may be small
    const char* program_ = "";          // in path_
};

} // namespace preload
