// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/calls/real.hpp"

#include <cerrno>

#include <dlfcn.h>

namespace preload::real {

namespace {

// Replaces a call that this libc does not have.
long missing() {
    errno = ENOSYS;
    return -1;
}

// Calls that are looked up here are safe in signal handlers.
__attribute__((constructor(101))) void prepare() {
#define PRELOAD_PREPARE(name) name.prepare();
    PRELOAD_CALLS(PRELOAD_PREPARE)
#undef PRELOAD_PREPARE
}

} // namespace

void* look_up(const char* name) {
    void* found = dlsym(RTLD_NEXT, name);
    return found != nullptr ? found : reinterpret_cast<void*>(missing);
}

} // namespace preload::real
