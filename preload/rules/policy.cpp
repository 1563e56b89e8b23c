// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The values of RSPRELOAD_UPGRADE and similar variables.
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "preload/rules/decide.hpp"
#include "preload/stats/settings.hpp"

namespace preload::policy {

namespace {

constexpr uint32_t default_calls = 8;

struct Upgrade {
    bool never = false;
    uint32_t calls = default_calls;
    uint32_t permille = 0;
    bool strangers = false;
    bool fabric = false;
    bool patient = false;
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
        upgrade.strangers = strstr(end, ":strangers") != nullptr;
        upgrade.fabric = strstr(end, ":fabric") != nullptr;
        upgrade.patient = strstr(end, ":patient") != nullptr;
        return upgrade;
    }
    const char* end = text + strlen(text);
    uint32_t calls = 0;
    if (const auto [rest, error] = std::from_chars(text, end, calls); error == std::errc() && rest == end) {
        upgrade.calls = calls;
    }
    return upgrade;
}

const Upgrade& get() {
    static constinit Upgrade upgrade;
    static constinit std::atomic<bool> ready{false};
    if (!ready.load(std::memory_order_acquire)) {
        upgrade = read(); // two threads at once read the same
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
bool test_fabric() { return get().fabric; }
bool test_patient() { return get().patient; }
bool fabric_allowed() { return test_fabric() || settings::fabric_is_allowed(); }

} // namespace preload::policy
