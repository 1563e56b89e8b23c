// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A library to preload in front of the preload library: the kernel has no memory for the larger areas of a ring, and
// cannot map part of a mapping again, as under valgrind.
#include <cerrno>
#include <cstdarg>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "preload/path/ring.hpp"

// NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name): libc's have leading underscores
extern "C" __attribute__((visibility("default"))) int madvise(void* at, size_t length, int advice) noexcept {
    if (advice == MADV_POPULATE_WRITE && length > preload::path::area_sizes[0]) {
        errno = ENOMEM;
        return -1;
    }
    return static_cast<int>(syscall(SYS_madvise, at, length, advice));
}

// NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name)
extern "C" __attribute__((visibility("default"))) void* mremap(void* at, size_t from, size_t to, int flags,
                                                               ...) noexcept {
    if (from == 0) {
        errno = EINVAL;
        return MAP_FAILED; // NOLINT(performance-no-int-to-ptr)
    }
    va_list arguments;
    va_start(arguments, flags);
    void* wanted = (flags & MREMAP_FIXED) != 0 ? va_arg(arguments, void*) : nullptr;
    va_end(arguments);
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    return reinterpret_cast<void*>(syscall(SYS_mremap, at, from, to, flags, wanted));
}
