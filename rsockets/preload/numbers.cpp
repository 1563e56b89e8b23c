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
    for (long long end = 0; !change(seen);) {
        if (end == 0) {
            end = now() + longest_wait;
        } else if (now() > end) {
            return false;
        }
        sched_yield();
        seen = makers.load(std::memory_order_relaxed);
    }
    this_thread_makes = true;
    return true;
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
        this_thread_makes = false;
        makers.fetch_sub(1, std::memory_order_release);
    }
}

LibraryMakes::LibraryMakes() {
    if (Carrier::is_ready() && !this_thread_makes && !in_vfork_child()) {
        held_ = in_time([](int seen) { return seen == 0 && replace(seen, library); });
    }
}

LibraryMakes::~LibraryMakes() {
    if (held_) {
        this_thread_makes = false;
        makers.store(0, std::memory_order_release);
    }
}

void after_fork() {
    makers.store(0);
    this_thread_makes = false;
}

} // namespace preload::numbers
