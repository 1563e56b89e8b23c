// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Who is calling. What the socket library, libfabric and the libraries below them ask of libc comes by here as well, in
// the program's threads and in threads of their own, and must never be carried.
#pragma once

#include <cstdint>

#define PRELOAD_CALLER __builtin_return_address(0)

namespace preload::caller {

// Marks the thread as being within a call of the socket library's.
class Inside {
  public:
    Inside() { ++depth; }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    ~Inside() { --depth; }

    static constinit thread_local int depth; // more than 0 also in threads that those libraries have made, for good
};

// Whether the code at this address belongs to those libraries. A sanitizer's, which stands between, or the compiler's
// counts by its thread.
bool is_internal(const void* address);

// Whether a new socket or thread is theirs: also when a library that we do not know the name of makes it for them. A
// signal handler of the program's that makes one on top of them gets one of the kernel's, which is never wrong.
inline bool is_for_internal(const void* address) { return Inside::depth > 0 || is_internal(address); }

// While a program's socket with SO_REUSEPORT is made to listen, by this thread: the core's is to share its port too.
class SharingPort {
  public:
    explicit SharingPort(bool on) { now = on; }
    SharingPort(const SharingPort&) = delete;
    SharingPort& operator=(const SharingPort&) = delete;
    ~SharingPort() { now = false; }

    static constinit thread_local bool now;
};

// Looks at the objects of the process again, after something may have been loaded.
void look_again();

void after_fork(); // in the child

} // namespace preload::caller
