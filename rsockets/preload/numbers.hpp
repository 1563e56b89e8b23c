// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A new descriptor has the lowest free number (POSIX 2.6), and programs count on it: close(0), then dup(fd). The kernel
// gives that number to the socket library's threads too, which move to one beyond the program's at once; what the
// program makes in between would get the next. So neither makes one while the other does.
//
// It is a courtesy, never a place to hang: nobody waits for longer than 10 ms, and open(2), which may wait for another
// process, is not held up by it when the program calls it.
#pragma once

#include "rsockets/preload/caller.hpp"
#include "rsockets/preload/carrier.hpp"

namespace preload::numbers {

// Held for one call of the program's that makes descriptors. Any number of threads at once; also in signal handlers.
class ProgramMakes {
  public:
    ProgramMakes();
    ProgramMakes(const ProgramMakes&) = delete;
    ProgramMakes& operator=(const ProgramMakes&) = delete;
    ~ProgramMakes();

  private:
    bool held_ = false;
};

// Held from the making of a descriptor of the library's own until it has moved away. One thread at a time.
class LibraryMakes {
  public:
    LibraryMakes();
    LibraryMakes(const LibraryMakes&) = delete;
    LibraryMakes& operator=(const LibraryMakes&) = delete;
    ~LibraryMakes();

  private:
    bool held_ = false;
};

// What `call` makes, a descriptor or -1, for who called from there: the library's own are moved away.
template <class Call> int make(const void* caller, Call&& call) {
    if (caller::is_internal(caller)) {
        const LibraryMakes held;
        return move_away(call());
    }
    const ProgramMakes held;
    return call();
}

void after_fork(); // in the child

} // namespace preload::numbers
