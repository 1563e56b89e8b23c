// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Threads that wait in the kernel's epoll set while it becomes one of the library's are woken, to wait there.
#pragma once

#include "rsockets/preload/real.hpp"
#include "rsockets/preload/table.hpp"

namespace preload::kick {

// In the kernel's set `kernel`, if anyone waits there; when they have gone, or are in no hurry, it returns. The caller
// has the change of numbers locked.
void wake(Entry& entry, int kernel);

// A thread that is about to wait in the kernel's set. The last one takes away what woke them.
class Waiting {
  public:
    explicit Waiting(Entry& entry) : entry_(entry) { entry.waiters.fetch_add(1); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    ~Waiting();

  private:
    Entry& entry_;
};

// Takes the event that woke them from what a wait has given; how many are left.
int without_kicks(epoll_event* events, int count);

} // namespace preload::kick
