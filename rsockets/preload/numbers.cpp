// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/preload/numbers.hpp"

#include <atomic>
#include <ctime>

#include <sched.h>

namespace preload::numbers {

namespace {

constexpr int library = -1;
constexpr long longest_wait = 10000000; // nanoseconds

// The calls of the program's that are under way, or `library`.
constinit std::atomic<int> makers{0};

// A signal handler must not wait for what it interrupts.
constinit thread_local bool this_thread_makes = false;

long long now() {
    timespec at{};
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
}

// Whether `change` was done to `makers` in time.
template <class Change> bool in_time(Change&& change) {
    int seen = makers.load(std::memory_order_relaxed);
    int first = seen;
    for (long long end = 0; !change(seen);) {
        if (end == 0 || seen != first) {
            first = seen;
            end = now() + longest_wait;
        } else if (now() > end) {
            // A signal handler may have left the call for good, by siglongjmp(3).
            (void)makers.compare_exchange_strong(first, 0);
            return false;
        }
        sched_yield();
        seen = makers.load(std::memory_order_relaxed);
    }
    this_thread_makes = true;
    return true;
}

// Unless somebody else has given it up for lost.
void leave(int held) {
    for (int seen = makers.load(); (held == library ? seen == library : seen > 0) &&
                                   !makers.compare_exchange_weak(seen, held == library ? 0 : seen - 1);) {
    }
    this_thread_makes = false;
}

bool replace(int seen, int by) { return makers.compare_exchange_weak(seen, by, std::memory_order_acquire); }

} // namespace

ProgramMakes::ProgramMakes() {
    // Before the library is loaded it has no threads. A child of vfork has none either, and may end at any time.
    if (Carrier::is_ready() && !this_thread_makes && !in_vfork_child()) {
        held_ = in_time([](int seen) { return seen != library && replace(seen, seen + 1); });
    }
}

ProgramMakes::~ProgramMakes() {
    if (held_) {
        leave(1);
    }
}

// The library runs in no child of vfork, so in_vfork_child(), which costs a system call, is not called.
LibraryMakes::LibraryMakes() {
    if (Carrier::is_ready() && !this_thread_makes) {
        held_ = in_time([](int seen) { return seen == 0 && replace(seen, library); });
    }
}

LibraryMakes::~LibraryMakes() {
    if (held_) {
        leave(library);
    }
}

// The fork may have been in a signal handler, and this thread be in the middle of such a call.
void after_fork() { makers.store(!this_thread_makes ? 0 : makers.load() > 0 ? 1 : library); }

} // namespace preload::numbers
