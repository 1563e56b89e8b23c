// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// One rule of what is upgraded: PORTS, :PORTS, ADDRESS[/PREFIX][:PORTS] or NAME[:PORTS], where PORTS is PORT[-PORT],
// and an IPv6 address has brackets. The address and the port are the server's: where a client connects to, or a server
// listens. Needs nothing but libc, neither memory nor exceptions; safe in any thread and in signal handlers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <sys/socket.h>

namespace preload {

// What becomes of a connection: it stays with the kernel, or takes a faster path.
enum class Verdict : uint8_t { kernel, upgrade };

enum class Family : uint8_t { any, ipv4, ipv6 };

// An address of a socket, in the form in which rules are compared with it: an IPv6 address that stands for one of IPv4
// has become that.
struct Endpoint {
    Family family = Family::any;
    std::array<uint8_t, 16> address{}; // IPv4: the first four bytes
    uint16_t port = 0;                 // host byte order

    // False if it is no internet address, or is cut short.
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

// Why a text is no rule: what is wrong, and at which of its characters, from 0.
struct Fault {
    const char* what = nullptr;
    size_t position = 0;
};

// Reads one rule. If it is none, rule is as it was, and fault says why. A rule that names a host leaves it in host, a
// part of text, and the rule's address to the caller: with_address, for each that the host has. Otherwise host is
// empty.
bool parse_rule(std::string_view text, Rule& rule, std::string_view& host, Fault& fault);

// The rule for one address, of which prefix bits count.
Rule with_address(Rule rule, Family family, const std::array<uint8_t, 16>& address, unsigned prefix);

} // namespace preload
