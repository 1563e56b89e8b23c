// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/preload/limits.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>

#include <sys/resource.h>

#include "rsockets/preload/caller.hpp"
#include "rsockets/preload/export.hpp"
#include "rsockets/preload/log.hpp"
#include "rsockets/preload/real.hpp"

namespace preload::limits {

namespace {

constexpr rlim_t room = 65536;      // numbers for the library, where the hard limit allows that
constexpr rlim_t usual_most = 8192; // numbers that programs really use; the kernel's table grows with the highest

constinit std::atomic<int> first{0};
constinit std::atomic<rlim_t> of_program{0}; // the soft limit as the program knows it; 0: nothing was changed

} // namespace

void make_room() {
    rlimit limit{};
    if (real::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return;
    }
    if (limit.rlim_cur > usual_most) {
        first.store(static_cast<int>(usual_most));
        return;
    }
    const rlim_t soft = limit.rlim_cur;
    if (limit.rlim_max > soft) {
        limit.rlim_cur = std::min(limit.rlim_max, soft + room);
        if (real::setrlimit(RLIMIT_NOFILE, &limit) == 0) {
            of_program.store(soft);
            first.store(static_cast<int>(soft));
            return;
        }
    }
    log("descriptors: the hard limit is %lu, and the library's own are taken from the program's",
        static_cast<unsigned long>(limit.rlim_max));
    first.store(static_cast<int>(soft / 2));
}

int first_internal() { return first.load(std::memory_order_relaxed); }

namespace {

bool to_be_hidden(int resource, const void* caller) {
    return resource == RLIMIT_NOFILE && of_program.load(std::memory_order_relaxed) != 0 &&
           !caller::is_for_internal(caller);
}

int get(int resource, rlimit* out, const void* caller) {
    const int ret = real::getrlimit(resource, out);
    if (ret == 0 && to_be_hidden(resource, caller)) {
        out->rlim_cur = std::min(of_program.load(), out->rlim_max);
    }
    return ret;
}

// What the program sets is what it sees; the kernel's soft limit stays above it as long as the hard one lets it.
int set(int resource, const rlimit* wanted, const void* caller) {
    if (wanted == nullptr || !to_be_hidden(resource, caller)) {
        return real::setrlimit(resource, wanted);
    }
    if (wanted->rlim_cur > wanted->rlim_max) {
        errno = EINVAL;
        return -1;
    }
    rlimit raised = *wanted;
    raised.rlim_cur =
        std::min(raised.rlim_max, std::max<rlim_t>(wanted->rlim_cur, static_cast<rlim_t>(first_internal()) + room));
    const int ret = real::setrlimit(RLIMIT_NOFILE, &raised);
    if (ret == 0) {
        of_program.store(wanted->rlim_cur);
    }
    return ret;
}

} // namespace

} // namespace preload::limits

using namespace preload;

static_assert(sizeof(rlimit) == sizeof(rlimit64));

PRELOAD_EXPORT int getrlimit(__rlimit_resource_t resource, struct rlimit* limits) noexcept {
    return limits::get(resource, limits, PRELOAD_CALLER);
}

PRELOAD_EXPORT int getrlimit64(__rlimit_resource_t resource, struct rlimit64* limits) noexcept {
    return limits::get(resource, reinterpret_cast<rlimit*>(limits), PRELOAD_CALLER);
}

PRELOAD_EXPORT int setrlimit(__rlimit_resource_t resource, const struct rlimit* limits) noexcept {
    return limits::set(resource, limits, PRELOAD_CALLER);
}

PRELOAD_EXPORT int setrlimit64(__rlimit_resource_t resource, const struct rlimit64* limits) noexcept {
    return limits::set(resource, reinterpret_cast<const rlimit*>(limits), PRELOAD_CALLER);
}

PRELOAD_EXPORT int prlimit(__pid_t pid, __rlimit_resource resource, const struct rlimit* wanted,
                           struct rlimit* old) noexcept {
    const void* caller = PRELOAD_CALLER;
    if ((pid != 0 && pid != getpid()) || !limits::to_be_hidden(static_cast<int>(resource), caller)) {
        return real::prlimit(pid, resource, wanted, old);
    }
    rlimit before{};
    if (limits::get(static_cast<int>(resource), &before, caller) != 0 ||
        (wanted != nullptr && limits::set(static_cast<int>(resource), wanted, caller) != 0)) {
        return -1;
    }
    if (old != nullptr) {
        *old = before;
    }
    return 0;
}

PRELOAD_EXPORT int prlimit64(__pid_t pid, __rlimit_resource resource, const struct rlimit64* wanted,
                             struct rlimit64* old) noexcept {
    return prlimit(pid, resource, reinterpret_cast<const rlimit*>(wanted), reinterpret_cast<rlimit*>(old));
}

PRELOAD_EXPORT long sysconf(int name) noexcept {
    if (name == _SC_OPEN_MAX && limits::to_be_hidden(RLIMIT_NOFILE, PRELOAD_CALLER)) {
        return static_cast<long>(limits::of_program.load());
    }
    return real::sysconf(name);
}

PRELOAD_EXPORT int getdtablesize() noexcept {
    if (limits::to_be_hidden(RLIMIT_NOFILE, PRELOAD_CALLER)) {
        return static_cast<int>(limits::of_program.load());
    }
    return real::getdtablesize();
}
