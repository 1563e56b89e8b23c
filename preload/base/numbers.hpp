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

namespace preload::numbers {

inline constinit std::atomic<uint32_t> makers{0};
inline constinit std::atomic<uint32_t> users{0};
// A wait for users, or for makers, has timed out, and is not repeated as long as there are some.
inline constinit std::atomic<bool> are_slow{false};
inline constinit std::atomic<bool> makers_are_slow{false};

// Calls done(), which yields, until it returns true or the time is over.
template <class Done> void wait_for(uint64_t timeout_ns, Done&& done) {
    const uint64_t end = sys::now_ns() + timeout_ns;
    while (!done() && sys::now_ns() < end) {
    }
}

// Lets other threads run: also those of a lower priority once this one has waited for a millisecond.
inline void yield_since(uint64_t begin_ns) {
    constexpr uint64_t short_ns = 1000000;
    if (sys::now_ns() - begin_ns < short_ns) {
        sys::call(SYS_sched_yield);
    } else {
        const timespec pause{0, 100000};
        sys::call(SYS_nanosleep, &pause, nullptr); // no cancellation point
    }
}

// Each side increments its count, then reads the other one, so that at least one of two sees the other. Objects of both
// kinds may be nested, at the cost of the wait.
class Making {
  public:
    Making() {
        makers.fetch_add(1);
        if (users.load() == 0) [[likely]] {
            are_slow.store(false, std::memory_order_relaxed);
        } else if (!are_slow.load(std::memory_order_relaxed)) {
            constexpr uint64_t timeout_ns = 250000000; // a fork of a large process takes milliseconds
            wait_for(timeout_ns, [begin = sys::now_ns()] {
                yield_since(begin);
                return users.load() == 0;
            });
            are_slow.store(users.load() != 0, std::memory_order_relaxed);
        }
    }
    Making(const Making&) = delete;
    Making& operator=(const Making&) = delete;
    ~Making() { makers.fetch_sub(1); }
};

// For a call of the program's that closes or replaces an fd unknown to the library, forks, or returns the lowest free
// fd, and that does not wait for anything else.
class Using {
  public:
    explicit Using(bool (*is_foreign)()) { begin(is_foreign); }
    Using(const Using&) = delete;
    Using& operator=(const Using&) = delete;
    ~Using() { end(); }

    static void begin(bool (*is_foreign)()) {
        constexpr uint64_t timeout_ns = 500000000;
        users.fetch_add(1);
        if (makers.load() == 0) [[likely]] {
            if (makers_are_slow.load(std::memory_order_relaxed)) [[unlikely]] {
                makers_are_slow.store(false, std::memory_order_relaxed);
            }
        } else if (!makers_are_slow.load(std::memory_order_relaxed) && !is_foreign()) {
            wait_for(timeout_ns, [begin = sys::now_ns()] {
                users.fetch_sub(1); // a Making must not wait for this one
                yield_since(begin);
                users.fetch_add(1);
                return makers.load() == 0;
            });
            makers_are_slow.store(makers.load() != 0, std::memory_order_relaxed);
        }
    }
    static void end() { users.fetch_sub(1); }
};

// In a child: the threads that were counted are its parent's.
inline void after_fork_in_child() {
    makers = 0;
    users = 0;
    are_slow = false;
    makers_are_slow = false;
}

} // namespace preload::numbers
