// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// RLIMIT_NOFILE of this process, which the library raises for a moment where the program uses a low soft limit: its own
// descriptors get numbers above that (descriptors.hpp). The program's calls that read or change the limit wait for the
// end of that moment, and a child that would inherit the raised one is not started within it.
#pragma once

#include <sys/resource.h>

#include "preload/connection/local_lock.hpp"

namespace preload::raised_limit {

inline constinit LocalLock lock;

// Whether the library has raised it at all.
bool is_used();

// While it exists, the limit is the program's own, and stays so: for a call that reads, changes or inherits it. In a
// signal handler that interrupts the library there, the limit may be the raised one.
class Awaited {
  public:
    Awaited() : hold_(lock) {}

  private:
    LocalLock::Hold hold_;
};

// The same for a call that may last, which other threads do not wait for: the library does not raise the limit.
void begin_pause();
void end_pause();
struct Pause {
    Pause() { begin_pause(); }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;
    ~Pause() { end_pause(); }
};
// In a child: the lock and the pauses were those of its parent's threads.
void after_fork_in_child();

// The program's limit. False: the kernel does not tell.
bool read(rlimit& limit);

// Duplicates fd to a number above the soft limit, which is `soft`, but below soft + more. -1: not possible now.
int duplicate_above(int fd, rlim_t soft, rlim_t more);

} // namespace preload::raised_limit
