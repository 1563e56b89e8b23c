// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/preload/settings.hpp"

#include <array>
#include <atomic>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "rsockets/preload/lock.hpp"

namespace preload::settings {

namespace {

using Path = std::array<char, PATH_MAX>;

constinit Path of_library{};
constinit Path of_log{};
constinit Path of_explain{};
constinit bool with_kernel = false;
constinit std::atomic<bool> ready{false};
constinit SpinLock reading;

void take(const char* name, Path& out) {
    const char* value = getenv(name);
    if (value != nullptr && strlen(value) < out.size()) {
        strcpy(out.data(), value); // NOLINT(clang-analyzer-security.insecureAPI.strcpy): it fits
    }
}

// Also called before any constructor of ours.
__attribute__((constructor)) void read_all() {
    if (ready.load(std::memory_order_acquire)) {
        return;
    }
    const SpinLock::Hold hold(reading);
    take("RSPRELOAD_LIBRARY", of_library);
    take("RSPRELOAD_LOG", of_log);
    take("RSPRELOAD_EXPLAIN", of_explain);
    const char* const kernel = getenv("RSPRELOAD_EXPLAIN_KERNEL");
    with_kernel = kernel != nullptr && strcmp(kernel, "1") == 0;
    ready.store(true, std::memory_order_release);
}

const char* given(const Path& path) {
    read_all();
    return path[0] != '\0' ? path.data() : nullptr;
}

} // namespace

const char* library() { return given(of_library); }
const char* log() { return given(of_log); }
const char* explain() { return given(of_explain); }
bool explain_kernel() {
    read_all();
    return with_kernel;
}

} // namespace preload::settings
