// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/rendezvous/raised_limit.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>

#include <fcntl.h>

#include "preload/base/system.hpp"

namespace preload::raised_limit {

namespace {

constinit std::atomic<uint32_t> pauses{0};
constinit std::atomic<bool> used{false};

} // namespace

bool is_used() { return used.load(); }

// Under the lock, so that the limit is not raised any more once this returns.
void begin_pause() {
    pauses.fetch_add(1);
    const Awaited program_limit;
}

void end_pause() { pauses.fetch_sub(1); }

void after_fork_in_child() {
    lock.forget();
    pauses = 0;
}

bool read(rlimit& limit) {
    const Awaited program_limit;
    return sys::call(SYS_prlimit64, 0, RLIMIT_NOFILE, nullptr, &limit) == 0;
}

int duplicate_above(int fd, rlim_t soft, rlim_t more) {
    const LocalLock::Hold hold(lock);
    if (!hold || pauses.load() != 0) {
        return -1;
    }
    rlimit limit{};
    if (sys::call(SYS_prlimit64, 0, RLIMIT_NOFILE, nullptr, &limit) != 0 || limit.rlim_cur != soft) {
        return -1; // the program has changed it since
    }
    used = true; // a call that has begun before may see the raised limit, once
    rlimit raised = limit;
    raised.rlim_cur = std::min(limit.rlim_max, soft + more);
    if (sys::call(SYS_prlimit64, 0, RLIMIT_NOFILE, &raised, nullptr) != 0) {
        return -1;
    }
    const auto made = static_cast<int>(sys::call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, soft));
    sys::call(SYS_prlimit64, 0, RLIMIT_NOFILE, &limit, nullptr);
    return made;
}

} // namespace preload::raised_limit
