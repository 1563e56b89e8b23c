// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The end of the main thread before others. libc ends the process with its last thread, and counts the library's.
#include <cstdint>

#include <threads.h>

#include "preload/base/system.hpp"
#include "preload/calls/export.hpp"
#include "preload/calls/real.hpp"
#include "preload/connection/lifecycle.hpp"
#include "preload/rendezvous/service.hpp"

using namespace preload;

namespace {

// Not in the table: its type says that it does not return, which makes another type of it for clang.
constinit real::Call<void(void*)> next_pthread_exit{"pthread_exit"};

} // namespace

// As libc's: only the type of the result differs.
PRELOAD_EXPORT void thrd_exit(int result) {
    pthread_exit(reinterpret_cast<void*>(static_cast<intptr_t>(result))); // NOLINT(performance-no-int-to-ptr)
}

PRELOAD_EXPORT void pthread_exit(void* result) {
    if (service::own_name() != 0 && sys::call(SYS_gettid) == sys::call(SYS_getpid)) {
        lifecycle::leave_everything_to_the_kernel();
    }
    next_pthread_exit(result);
    __builtin_unreachable();
}
