// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// fork in a process with threads, whose child goes on with the library.
#pragma once

#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
#include <cstdlib>
#include <filesystem>

#include "rsockets/test/asleep.hpp"
#endif

// AddressSanitizer's allocator, unlike libc's, does not take its locks at fork: a child would inherit one that another
// thread holds, and stand still for ever. There the others are to sleep.
inline void prepare_fork_with_threads() {
#ifdef __SANITIZE_ADDRESS__
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
        if (const long id = atol(task.path().filename().c_str()); id != gettid()) {
            await_thread_asleep(id);
        }
    }
#endif
}

inline pid_t fork_with_threads() {
    prepare_fork_with_threads();
    return fork();
}
