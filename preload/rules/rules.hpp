// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Which TCP connections of a program may take a faster path than the kernel's. RSPRELOAD_RULES has the rules, separated
// by blanks; if it is not set, the administrator's file has them (RSPRELOAD_CONFIG, or preload_config in the folder of
// the library's settings), in lines of these forms:
//
//     PROGRAM DOMAIN TYPE PROTOCOL    as in rdma-core's file of this name: other sockets stay with the kernel
//     [upgrade] RULE                  an address that is upgraded; with such lines, no other one is
//     kernel RULE                     an address that is not
//
// The first rule that matches decides. If none does, and there are no upgrade rules, the connection may be upgraded. An
// invalid line is skipped, and reported in the log (RSPRELOAD_LOG).
//
// Needs only libc, and no memory except two mappings. All of it may be called from any thread, from signal handlers,
// and before constructors have run.
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
    const char* reason; // never null; valid while the program runs
};

// Receives the reports of invalid lines.
struct Report {
    void (*say)(void* context, const char* line) = nullptr;
    void* context = nullptr;
};

class Rules {
  public:
    // This process's rules: read at the first call, and constant from then on.
    static const Rules& get();

    // Takes the arguments of socket(); a type may include SOCK_NONBLOCK and SOCK_CLOEXEC.
    [[nodiscard]] Decision for_socket(int domain, int type, int protocol) const;
    // Whether an established connection may leave the kernel; server is the address of the side that listened: the
    // connecting end's peer, the accepting end's own.
    [[nodiscard]] Decision for_upgrade(const sockaddr* server, socklen_t length) const;

    // Used by get(). Adds the rules of a RSPRELOAD_RULES, each of which may follow the word kernel or upgrade; false if
    // it has only blanks.
    bool add_words(std::string_view words, const Report& report);
    // Adds the lines of a file for the sockets of `program`; source is the file's name in reports.
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
    // Fixed sizes, so that no memory is allocated.
    static constexpr size_t max_rules = 256;
    static constexpr size_t max_kinds = 64;

    void load(const Report& report);
    void load_file(const char* path, bool named, const Report& report);
    void add_line(std::string_view line, std::string_view program, const struct Place& place);
    void add_kind(const std::string_view* columns, std::string_view program, const struct Place& place);
    void add_upgrade(std::string_view text, const struct Place& place);
    bool add_rule(std::string_view text, Verdict verdict, const struct Place& place);
    bool add_parsed(const Rule& rule, std::string_view text, const struct Place& place);
    bool add_host(const Rule& rule, std::string_view host, std::string_view text, const struct Place& place);
    void find_program();
    [[nodiscard]] const Rule* first_match(const Endpoint& endpoint) const;

    std::array<Rule, max_rules> rules_{};
    size_t rule_count_ = 0;
    bool only_ = false; // addresses without a rule stay with the kernel
    std::array<Kind, max_kinds> kinds_{};
    size_t kind_count_ = 0;
    bool listed_ = false;               // sockets of no listed kind stay with the kernel
    std::array<char, PATH_MAX> path_{}; // of the program: here, since a signal handler's stack may be small
    const char* program_ = "";          // in path_
};

} // namespace preload
