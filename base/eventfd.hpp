// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Notifications by an eventfd(2) that is opened with EFD_NONBLOCK. They are system calls that may be made in a signal
// handler, and that cannot fail in a way that matters to the caller.
#pragma once

#include <cstdint>

#include <sys/types.h>
#include <unistd.h>

namespace base {

// The descriptor is readable from now on. Only after 2^64 notifications that nobody has consumed does the write fail,
// and then it is readable in any case.
inline void notify(int eventfd) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(eventfd, &one, sizeof(one));
}

// It is not readable until the next one. The read fails if it was not readable before.
inline void consume_notifications(int eventfd) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t consumed = ::read(eventfd, &count, sizeof(count));
}

} // namespace base
