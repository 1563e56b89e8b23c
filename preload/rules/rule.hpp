// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// One rule that selects connections: PORTS, :PORTS, ADDRESS[/PREFIX][:PORTS] or NAME[:PORTS], where PORTS is
// PORT[-PORT], and an IPv6 address has brackets. The address and the port are the server's: where a client connects to,
// or a server listens. Needs only libc, and neither allocates memory nor throws; safe in any thread and in signal
// handlers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <sys/socket.h>

namespace preload {

// Whether a connection stays with the kernel, or may take a faster path.
enum class Verdict : uint8_t { kernel, upgrade };

enum class Family : uint8_t { any, ipv4, ipv6 };

// A socket address in the form that rules are compared with: an IPv4-mapped IPv6 address is converted to IPv4.
struct Endpoint {
    Family family = Family::any;
    std::array<uint8_t, 16> address{}; // IPv4: the first four bytes
    uint16_t port = 0;                 // host byte order

    // False if it is not an internet address, or is truncated.
    bool take(const sockaddr* from, socklen_t length);
    [[nodiscard]] bool is_wildcard() const;
};

struct Rule {
    Verdict verdict = Verdict::upgrade;
    Family family = Family::any;
    uint8_t prefix = 0; // bits of the address that count
    std::array<uint8_t, 16> address{};
    uint16_t first_port = 0;
    uint16_t last_port = 65535;

    [[nodiscard]] bool matches(const Endpoint& endpoint) const;
};

// Why a text is not a rule: the error, and the position of its character, from 0.
struct Fault {
    const char* what = nullptr;
    size_t position = 0;
};

// Parses one rule. On failure, rule is unchanged, and fault has the reason. For a rule with a host name, host is that
// part of text, and the caller sets the rule's address: with_address, for each address of the host. Otherwise host is
// empty.
bool parse_rule(std::string_view text, Rule& rule, std::string_view& host, Fault& fault);

// The rule for one address, of which prefix bits count.
Rule with_address(Rule rule, Family family, const std::array<uint8_t, 16>& address, unsigned prefix);

} // namespace preload
