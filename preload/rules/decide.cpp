// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/rules/decide.hpp"

#include <cstdlib>
#include <cstring>

#include <arpa/inet.h>
#include <netinet/in.h>

#include "preload/rules/rules.hpp"
#include "preload/stats/settings.hpp"

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

namespace policy {

namespace {

constexpr uint32_t default_calls = 8;

struct Upgrade {
    bool never = false;
    uint32_t calls = default_calls;
    uint32_t permille = 0;
    bool strangers = false;
};

Upgrade read() {
    Upgrade upgrade;
    const char* text = settings::upgrade();
    if (text == nullptr) {
        return upgrade;
    }
    if (strcmp(text, "never") == 0) {
        upgrade.never = true;
        return upgrade;
    }
    if (strncmp(text, "test:", 5) == 0) {
        char* end = nullptr;
        upgrade.calls = static_cast<uint32_t>(strtoul(text + 5, &end, 10));
        upgrade.permille = *end == ':' ? static_cast<uint32_t>(strtoul(end + 1, &end, 10)) : 0;
        upgrade.strangers = strcmp(end, ":strangers") == 0;
        return upgrade;
    }
    if (*text >= '0' && *text <= '9') {
        upgrade.calls = static_cast<uint32_t>(strtoul(text, nullptr, 10));
    }
    return upgrade;
}

const Upgrade& get() {
    static constinit Upgrade upgrade;
    static constinit std::atomic<bool> ready{false};
    if (!ready.load(std::memory_order_acquire)) {
        upgrade = read(); // by two threads at once: the same
        ready.store(true, std::memory_order_release);
    }
    return upgrade;
}

} // namespace

uint64_t max_kernel_pause_ns() {
    static constinit std::atomic<uint64_t> known{UINT64_MAX};
    uint64_t pause = known.load(std::memory_order_relaxed);
    if (pause == UINT64_MAX) {
        constexpr uint64_t default_ns = 50000;
        const char* given = getenv("RSPRELOAD_FAIRNESS");
        pause = given != nullptr && *given >= '0' && *given <= '9' ? strtoul(given, nullptr, 10) * 1000 : default_ns;
        known = pause;
    }
    return pause;
}
uint32_t worth_after_calls() { return get().calls; }
bool never() { return get().never; }
uint32_t test_return_permille() { return get().permille; }
bool test_strangers() { return get().strangers; }

} // namespace policy
} // namespace preload
