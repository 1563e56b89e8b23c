// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The kernel gives the lowest free number to each new descriptor, including the library's. Until the library has moved
// its own to a number that the program does not miss (rendezvous/descriptors.hpp), no thread of the program may close
// it, put a duplicate in its place, or fork a child that would inherit it: the library would continue with a file of
// the program's under that number. Both sides wait for each other, but not for long: the program may be in a slow
// close, a signal handler may have interrupted the library, and a processor may be busy.
#pragma once

#include <atomic>
#include <cstdint>

#include "preload/base/system.hpp"

namespace preload::lowest_fd {

inline constinit std::atomic<uint32_t> openings{0};
inline constinit std::atomic<uint32_t> calls{0};
// A wait for the calls, or for the openings, has timed out, and is not repeated until all of those have ended.
inline constinit std::atomic<bool> calls_are_slow{false};
inline constinit std::atomic<bool> openings_are_slow{false};

inline void end_slow(std::atomic<bool>& slow) {
    if (slow.load(std::memory_order_relaxed)) [[unlikely]] {
        slow.store(false, std::memory_order_relaxed);
    }
}

// Each side increments its count, then reads the other one, so that at least one of two sees the other. Objects of both
// kinds may be nested, at the cost of the wait.
class Opening {
  public:
    Opening() {
        openings.fetch_add(1);
        if (calls.load() == 0) [[likely]] {
            end_slow(calls_are_slow);
        } else if (!calls_are_slow.load(std::memory_order_relaxed)) {
            constexpr uint64_t timeout_ns = 250000000; // a fork of a large process takes milliseconds
            const bool ended = sys::wait_for(timeout_ns, [begin = sys::now_ns()] {
                sys::yield_since(begin);
                return calls.load() == 0;
            });
            calls_are_slow.store(!ended, std::memory_order_relaxed);
        }
    }
    Opening(const Opening&) = delete;
    Opening& operator=(const Opening&) = delete;
    ~Opening() {
        if (openings.fetch_sub(1) == 1) {
            end_slow(openings_are_slow);
        }
    }
};

// For a call of the program's that closes or replaces an fd unknown to the library, forks, or returns the lowest free
// fd, and that does not wait for anything else.
class ProgramCall {
  public:
    explicit ProgramCall(bool (*is_foreign)()) { begin(is_foreign); }
    ProgramCall(const ProgramCall&) = delete;
    ProgramCall& operator=(const ProgramCall&) = delete;
    ~ProgramCall() { end(); }

    static void begin(bool (*is_foreign)()) {
        constexpr uint64_t timeout_ns = 500000000;
        calls.fetch_add(1);
        if (openings.load() == 0) [[likely]] {
            end_slow(openings_are_slow);
        } else if (!openings_are_slow.load(std::memory_order_relaxed) && !is_foreign()) {
            const bool ended = sys::wait_for(timeout_ns, [begin = sys::now_ns()] {
                calls.fetch_sub(1); // an Opening must not wait for this one
                sys::yield_since(begin);
                calls.fetch_add(1);
                return openings.load() == 0;
            });
            openings_are_slow.store(!ended, std::memory_order_relaxed);
        }
    }
    static void end() {
        if (calls.fetch_sub(1) == 1) {
            end_slow(calls_are_slow);
        }
    }
};

// In a child: the threads that were counted are its parent's.
inline void after_fork_in_child() {
    openings = 0;
    calls = 0;
    calls_are_slow = false;
    openings_are_slow = false;
}

} // namespace preload::lowest_fd
