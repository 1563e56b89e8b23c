// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Any bytes as the administrator's file, as the environment's rules and as an address: nothing is read out of bounds, a
// rule that is taken has a sensible range, and what it names it matches.
#include <cstdlib>
#include <cstring>
#include <string>

#include "preload/rules/rules.hpp"

namespace {

void require(bool condition) {
    if (!condition) {
        abort();
    }
}

void one_rule(std::string_view text) {
    preload::Rule rule;
    preload::Fault fault;
    std::string_view host;
    if (!parse_rule(text, rule, host, fault)) {
        require(fault.what != nullptr && fault.position <= text.size());
        return;
    }
    require(rule.first_port <= rule.last_port);
    if (!host.empty()) {
        require(host.data() >= text.data() && host.data() + host.size() <= text.data() + text.size());
        return; // it has no address yet
    }
    require(rule.family == preload::Family::ipv4 ? rule.prefix <= 32 : rule.prefix <= 128);
    preload::Endpoint named;
    named.family = rule.family;
    named.address = rule.address;
    named.port = rule.last_port;
    require(rule.matches(named));
    if (rule.last_port < 65535) {
        ++named.port;
        require(!rule.matches(named));
    }
}

void check(const preload::Decision& decision) {
    require(decision.reason != nullptr);
    require(decision.verdict == preload::Verdict::upgrade || decision.verdict == preload::Verdict::kernel);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    // Copies of their own, so that a step beyond the end is seen.
    const std::string text(reinterpret_cast<const char*>(data), size);
    one_rule(text);
    preload::Rules words;
    preload::Rules lines;
    const preload::Report report{[](void*, const char* line) { require(strchr(line, '\n') == nullptr); }, nullptr};
    words.add_words(text, report);
    lines.add_lines(text, "program", "file", report);
    sockaddr_storage address{};
    memcpy(&address, data, size < sizeof(address) ? size : sizeof(address));
    for (const preload::Rules* rules : {&words, &lines}) {
        for (const sa_family_t family : {sa_family_t{AF_INET}, sa_family_t{AF_INET6}, address.ss_family}) {
            address.ss_family = family;
            const auto length = static_cast<socklen_t>(size < sizeof(address) ? size : sizeof(address));
            check(rules->for_upgrade(reinterpret_cast<const sockaddr*>(&address), length));
            check(rules->for_socket(family, SOCK_STREAM, 0));
        }
    }
    return 0;
}
