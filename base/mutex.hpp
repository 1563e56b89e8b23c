// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Mutexes that clang checks with -Wthread-safety (`make check-thread-safety`): a member names the mutex that guards it,
// and a function names the mutexes that it requires. With other compilers the annotations expand to nothing.
#pragma once

#include <mutex>

#ifdef __clang__
#define BASE_CHECKED(attribute) __attribute__((attribute))
#else
#define BASE_CHECKED(attribute)
#endif

#define BASE_GUARDED_BY(mutex) BASE_CHECKED(guarded_by(mutex))
// The caller holds the mutex.
#define BASE_REQUIRES(...) BASE_CHECKED(requires_capability(__VA_ARGS__))
// The caller does not hold the mutex: the function locks it.
#define BASE_EXCLUDES(...) BASE_CHECKED(locks_excluded(__VA_ARGS__))
// Lock order where both mutexes are held.
#define BASE_ACQUIRED_BEFORE(...) BASE_CHECKED(acquired_before(__VA_ARGS__))
#define BASE_ACQUIRED_AFTER(...) BASE_CHECKED(acquired_after(__VA_ARGS__))
// Not checked; a comment at each use gives the reason.
#define BASE_UNCHECKED BASE_CHECKED(no_thread_safety_analysis)

namespace base {

template <class Lockable> class BASE_CHECKED(capability("mutex")) CheckedMutex {
  public:
    constexpr CheckedMutex() = default;
    CheckedMutex(const CheckedMutex&) = delete;
    CheckedMutex& operator=(const CheckedMutex&) = delete;

    void lock() BASE_CHECKED(acquire_capability()) { lockable_.lock(); }
    bool try_lock() BASE_CHECKED(try_acquire_capability(true)) { return lockable_.try_lock(); }
    void unlock() BASE_CHECKED(release_capability()) { lockable_.unlock(); }

  private:
    Lockable lockable_;
};

using Mutex = CheckedMutex<std::mutex>;
using RecursiveMutex = CheckedMutex<std::recursive_mutex>;

// Scoped lock.
template <class Kind> class BASE_CHECKED(scoped_lockable) Guard {
  public:
    explicit Guard(Kind& mutex) BASE_CHECKED(acquire_capability(mutex)) : mutex_(mutex) { mutex_.lock(); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
    ~Guard() BASE_CHECKED(release_capability()) { mutex_.unlock(); }

  private:
    Kind& mutex_;
};

} // namespace base
