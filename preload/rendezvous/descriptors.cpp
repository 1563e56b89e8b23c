// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/rendezvous/descriptors.hpp"

#include <algorithm>

#include <fcntl.h>
#include <sys/resource.h>

#include "preload/base/system.hpp"
#include "preload/connection/table.hpp"
#include "preload/rendezvous/raised_limit.hpp"

namespace preload::descriptors {

namespace {

constexpr rlim_t extra = 256;       // fd numbers of the library, above the soft limit
constexpr rlim_t max_first = 65536; // the kernel's table grows with the highest number

int duplicate_above(int fd, rlim_t first) { return static_cast<int>(sys::call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, first)); }

constexpr rlim_t many = extra * 16; // a program with this many fd numbers does not miss `extra` of them

constinit bool all_own = false;

// The first number that the program does not miss; 0: there is none.
rlim_t first_spare(rlim_t soft) {
    if (all_own) {
        constexpr rlim_t beyond_standard_ones = 3;
        return beyond_standard_ones;
    }
    const rlim_t top = std::min(soft, max_first);
    return top > many ? top - extra : 0;
}

int duplicate(int fd, bool spare) {
    rlimit limit{};
    if (!raised_limit::read(limit)) {
        return spare ? -1 : duplicate_above(fd, 3);
    }
    const rlim_t soft = limit.rlim_cur;
    if (!all_own && limit.rlim_max > soft && soft <= max_first) {
        if (const int made = raised_limit::duplicate_above(fd, soft, extra); made >= 0) {
            return made;
        }
    }
    rlim_t first = first_spare(soft);
    if (first == 0 && !spare && soft > extra) {
        first = soft - extra / 4;
    }
    const int made = first != 0 ? duplicate_above(fd, first) : -1;
    return made >= 0 || spare ? made : duplicate_above(fd, 3);
}

} // namespace

namespace {

int move_away(int fd, bool spare) {
    if (fd < 0) {
        return -1;
    }
    const int made = duplicate(fd, spare);
    sys::call(SYS_close, fd);
    uintptr_t before = 0;
    if (made >= 0 && !table::put(made, table::internal, before)) {
        sys::call(SYS_close, made);
        return -1;
    }
    return made;
}

} // namespace

void own_all() {
    all_own = true;
    rlimit limit{};
    if (sys::call(SYS_prlimit64, 0, RLIMIT_NOFILE, nullptr, &limit) == 0) {
        limit.rlim_cur = std::max(limit.rlim_cur, std::min(limit.rlim_max, max_first));
        sys::call(SYS_prlimit64, 0, RLIMIT_NOFILE, &limit, nullptr);
    }
}

int keep(int fd) { return move_away(fd, false); }
int keep_spare(int fd) { return move_away(fd, true); }

bool is_spare(int fd) {
    rlimit limit{};
    if (!raised_limit::read(limit)) {
        return false;
    }
    const auto number = static_cast<rlim_t>(fd);
    const rlim_t first = first_spare(limit.rlim_cur);
    return number >= limit.rlim_cur || (first != 0 && number >= first);
}

void close(int fd) {
    if (fd >= 0) {
        table::take(fd);
        sys::call(SYS_close, fd);
    }
}

void close_all() {
    table::for_each([](int fd, uintptr_t what) {
        if (what == table::internal) {
            close(fd);
        }
    });
}

} // namespace preload::descriptors
