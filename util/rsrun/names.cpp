// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/rsrun/names.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <strings.h>

#include "preload/rules/rule.hpp"
#include "util/common/failure.hpp"

namespace rsrun {

namespace {

std::string text_of(const sockaddr& address) {
    std::array<char, INET6_ADDRSTRLEN> text{};
    if (address.sa_family == AF_INET) {
        inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text.data(), text.size());
        return text.data();
    }
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, text.data(), text.size());
    return "[" + std::string(text.data()) + "]";
}

} // namespace

std::vector<std::string> resolve_rule(const std::string& rule) {
    preload::Rule parsed;
    preload::Fault fault;
    std::string_view host;
    parse_rule(rule, parsed, host, fault);
    if (host.empty() ||
        (host.size() == strlen("localhost") && strncasecmp(host.data(), "localhost", host.size()) == 0)) {
        return {rule};
    }
    const std::string name(host);
    const std::string ports = rule.substr(name.size()); // the rule begins with the name
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* list = nullptr;
    if (const int error = getaddrinfo(name.c_str(), nullptr, &hints, &list); error != 0) {
        util::fail("--only {}: the name {} cannot be resolved: {}", rule, name,
                   error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error));
    }
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(list, freeaddrinfo);
    std::vector<std::string> rules;
    for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
        if (one->ai_family == AF_INET || one->ai_family == AF_INET6) {
            std::string resolved = text_of(*one->ai_addr) + ports;
            if (std::find(rules.begin(), rules.end(), resolved) == rules.end()) {
                rules.push_back(std::move(resolved));
            }
        }
    }
    if (rules.empty()) {
        util::fail("--only {}: the name {} has no internet address", rule, name);
    }
    return rules;
}

} // namespace rsrun
