// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// RLIMIT_NOFILE, as the program has set it: not as the library raises it for moments (rendezvous/raised_limit.hpp).
//
// By system calls, and without a sanitizer in the way of other limits: sanitizers make these calls before they can be
// used themselves, and before libc's functions can be looked up.
#include <cerrno>
#include <optional>

#include <sys/resource.h>

#include "preload/base/system.hpp"
#include "preload/calls/export.hpp"
#include "preload/rendezvous/raised_limit.hpp"

using namespace preload;

#define PRELOAD_EARLY __attribute__((no_sanitize("thread", "address", "undefined")))

namespace {

constexpr unsigned long number_limit = RLIMIT_NOFILE;

PRELOAD_EARLY int call(pid_t process, unsigned long resource, const void* limit, void* before) {
    const long result = sys::invoke(SYS_prlimit64, static_cast<unsigned long>(process), resource,
                                    reinterpret_cast<unsigned long>(limit), reinterpret_cast<unsigned long>(before));
    if (result < 0) {
        errno = static_cast<int>(-result);
        return -1;
    }
    return 0;
}

int call_for_numbers(pid_t process, const void* limit, void* before) {
    std::optional<raised_limit::Awaited> program_limit;
    if (raised_limit::is_used()) {
        program_limit.emplace();
    }
    return call(process, number_limit, limit, before);
}

PRELOAD_EARLY int change(pid_t process, unsigned long resource, const void* limit, void* before) {
    return resource == number_limit ? call_for_numbers(process, limit, before) : call(process, resource, limit, before);
}

} // namespace

PRELOAD_EXPORT PRELOAD_EARLY int getrlimit(__rlimit_resource_t resource, rlimit* limit) noexcept {
    return change(0, static_cast<unsigned long>(resource), nullptr, limit);
}
PRELOAD_EXPORT PRELOAD_EARLY int setrlimit(__rlimit_resource_t resource, const rlimit* limit) noexcept {
    return change(0, static_cast<unsigned long>(resource), limit, nullptr);
}
PRELOAD_EXPORT PRELOAD_EARLY int prlimit(pid_t process, __rlimit_resource resource, const rlimit* limit,
                                         rlimit* before) noexcept {
    return change(process, static_cast<unsigned long>(resource), limit, before);
}

// With 64 bits, the structures are the same.
static_assert(sizeof(rlimit) == sizeof(rlimit64));
PRELOAD_EXPORT PRELOAD_EARLY int getrlimit64(__rlimit_resource_t resource, rlimit64* limit) noexcept {
    return change(0, static_cast<unsigned long>(resource), nullptr, limit);
}
PRELOAD_EXPORT PRELOAD_EARLY int setrlimit64(__rlimit_resource_t resource, const rlimit64* limit) noexcept {
    return change(0, static_cast<unsigned long>(resource), limit, nullptr);
}
PRELOAD_EXPORT PRELOAD_EARLY int prlimit64(pid_t process, __rlimit_resource resource, const rlimit64* limit,
                                           rlimit64* before) noexcept {
    return change(process, static_cast<unsigned long>(resource), limit, before);
}
