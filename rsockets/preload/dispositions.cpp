// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/preload/dispositions.hpp"

#include <cerrno>
#include <csignal>
#include <cstring>

#include <sys/syscall.h>
#include <unistd.h>

namespace preload {

Dispositions::Dispositions() {
    const unsigned long long all = ~0ULL;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &mask_, mask_bytes);
    for (int i = 1; i <= signals; ++i) {
        known_[i] = syscall(SYS_rt_sigaction, i, nullptr, &before_[i], mask_bytes) == 0;
    }
}

Dispositions::~Dispositions() {
    const int saved = errno;
    for (int i = 1; i <= signals; ++i) {
        Action now{};
        if (known_[i] && syscall(SYS_rt_sigaction, i, nullptr, &now, mask_bytes) == 0 &&
            memcmp(&now, &before_[i], sizeof(now)) != 0) {
            syscall(SYS_rt_sigaction, i, &before_[i], nullptr, mask_bytes);
        }
    }
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &mask_, nullptr, mask_bytes);
    errno = saved;
}

} // namespace preload
