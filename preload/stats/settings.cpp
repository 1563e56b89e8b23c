// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/stats/settings.hpp"

#include <array>
#include <atomic>
#include <climits>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>

#include "preload/base/system.hpp"

namespace preload::settings {

namespace {

using Value = std::array<char, 512>;
using File = std::array<char, PATH_MAX>;

constinit File of_explain{};
constinit Value of_upgrade{};
constinit Value of_stdio{};
constinit Value of_fabric{};
constinit File of_fabric_worker{};
constinit Value of_program{};
constinit std::atomic<bool> ready{false};

template <size_t size> void take(const char* name, std::array<char, size>& out) {
    const char* value = getenv(name);
    if (value != nullptr && strlen(value) < out.size()) {
        memcpy(out.data(), value, strlen(value) + 1);
    }
}

// Also called before constructors have run; two threads at once read the same.
__attribute__((constructor(101))) void read_all() {
    if (ready.load(std::memory_order_acquire)) {
        return;
    }
    take("RSPRELOAD_EXPLAIN", of_explain);
    take("RSPRELOAD_UPGRADE", of_upgrade);
    take("RSPRELOAD_STDIO", of_stdio);
    take("RSPRELOAD_FABRIC", of_fabric);
    take("RSPRELOAD_FABRIC_WORKER", of_fabric_worker);
    std::array<char, PATH_MAX> path{};
    const long n = sys::call(SYS_readlinkat, AT_FDCWD, "/proc/self/exe", path.data(), path.size() - 1);
    const char* slash = n > 0 ? strrchr(path.data(), '/') : nullptr;
    const char* base = slash != nullptr ? slash + 1 : "-";
    memcpy(of_program.data(), base, std::min(strlen(base) + 1, of_program.size() - 1));
    ready.store(true, std::memory_order_release);
}

template <size_t size> const char* given(const std::array<char, size>& value) {
    read_all();
    return value[0] != '\0' ? value.data() : nullptr;
}

} // namespace

const char* explain() { return given(of_explain); }
const char* upgrade() { return given(of_upgrade); }
bool stdio_is_unused() {
    read_all();
    return strcmp(of_stdio.data(), "unused") == 0;
}
bool fabric_is_allowed() {
    read_all();
    return strcmp(of_fabric.data(), "1") == 0;
}
const char* fabric_worker() { return given(of_fabric_worker); }
const char* program() {
    read_all();
    return of_program.data();
}

} // namespace preload::settings
