// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Which sockets of a program are carried. RSPRELOAD_RULES says so in rules separated by blanks; where it is not set,
// the administrator's file does (RSPRELOAD_CONFIG, or preload_config in the folder of the library's settings), whose
// lines are
//
//     PROGRAM DOMAIN TYPE PROTOCOL     as in rdma-core's file of this name: sockets of no such line stay with the
//     kernel [carry] RULE                     an address that is carried; with such lines, no other one is kernel RULE
//     an address that is not
//
// The first rule that matches decides. Where none does, internet streams are carried if they can go over an RDMA
// device, but for loopback and multicast: over the core tcp, a server that does not expect it would take the handshake
// for data. A line that cannot be read is left out, and the log (RSPRELOAD_LOG) names it.
//
// Needs nothing but libc. All of it may be called from any thread and from signal handlers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <sys/socket.h>

#include "rsockets/preload/rule.hpp"

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
    // Where a socket is to connect to.
    [[nodiscard]] Decision for_connect(const sockaddr* address, socklen_t length) const;
    // Where a socket listens: its own address, with the port that it really has.
    [[nodiscard]] Decision for_listen(const sockaddr* address, socklen_t length) const;

    // How get() makes them. The rules of a RSPRELOAD_RULES; false if there is nothing but blanks in it.
    bool add_words(std::string_view words, const Report& report);
    // The lines of a file; program is whose sockets are meant, source how the report calls the file.
    void add_lines(std::string_view lines, std::string_view program, const char* source, const Report& report);

    // Whether there is an RDMA device, and verbs is among the cores that are to be used (null: all are). sys is where
    // /sys is.
    void look_for_device(const char* sys, const char* cores);

  private:
    // rdma-core's columns; -1 stands for any.
    struct Kind {
        int domain = -1;
        int type = -1;
        int protocol = -1;
    };
    // Fixed, so that no memory is asked for.
    static constexpr size_t most_rules = 256;
    static constexpr size_t most_kinds = 64;

    void load(const Report& report);
    void load_file(const char* path, bool named, const Report& report);
    void add_line(std::string_view line, std::string_view program, const struct Place& place);
    void add_kind(const std::string_view* columns, std::string_view program, const struct Place& place);
    bool add_rule(std::string_view text, Verdict verdict, const struct Place& place);
    [[nodiscard]] Decision by_default(const Endpoint& endpoint) const;

    std::array<Rule, most_rules> rules_{};
    size_t rule_count_ = 0;
    bool only_ = false; // what no rule names stays with the kernel
    std::array<Kind, most_kinds> kinds_{};
    size_t kind_count_ = 0;
    bool listed_ = false; // sockets of no kind stay with the kernel
    bool device_ = true;  // what no rule names can go over RDMA
};

} // namespace preload
