// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/rules/decide.hpp"

#include <cstring>

#include <arpa/inet.h>
#include <netinet/in.h>

#include "preload/rules/rules.hpp"

namespace preload {

Reason decide(const rendezvous::Ends& ends, Role role) {
    const rendezvous::Address& server = role == Role::connect ? ends.peer : ends.own;
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(server.port);
    memcpy(&address.sin6_addr, server.bytes.data(), server.bytes.size());
    const Rules& rules = Rules::get();
    Decision decision = rules.for_socket(server.is_ipv4() ? AF_INET : AF_INET6, SOCK_STREAM, IPPROTO_TCP);
    if (decision.verdict == Verdict::upgrade) {
        decision = rules.for_upgrade(reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    }
    if (decision.verdict == Verdict::upgrade) {
        return Reason::none;
    }
    return strstr(decision.reason, "no rule names") != nullptr ? Reason::not_named : Reason::rule;
}

} // namespace preload
