// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Mutexes whose use clang checks (-Wthread-safety, `make check-thread-safety`): what a lock guards is said where it is
// declared, and which locks a function needs in its declaration. To other compilers the words mean nothing.
#pragma once

#include <mutex>

#ifdef __clang__
#define RSOCKET_CHECKED(attribute) __attribute__((attribute))
#else
#define RSOCKET_CHECKED(attribute)
#endif

#define RSOCKET_GUARDED_BY(mutex) RSOCKET_CHECKED(guarded_by(mutex))
// The caller holds it.
#define RSOCKET_REQUIRES(...) RSOCKET_CHECKED(requires_capability(__VA_ARGS__))
// The caller does not hold it: the function locks it.
#define RSOCKET_EXCLUDES(...) RSOCKET_CHECKED(locks_excluded(__VA_ARGS__))
// Not checked; the reason is beside it.
#define RSOCKET_UNCHECKED RSOCKET_CHECKED(no_thread_safety_analysis)

namespace rsockets {

template <class Base> class RSOCKET_CHECKED(capability("mutex")) CheckedMutex {
  public:
    constexpr CheckedMutex() = default;
    CheckedMutex(const CheckedMutex&) = delete;
    CheckedMutex& operator=(const CheckedMutex&) = delete;

    void lock() RSOCKET_CHECKED(acquire_capability()) { base_.lock(); }
    void unlock() RSOCKET_CHECKED(release_capability()) { base_.unlock(); }

  private:
    Base base_;
};

using Mutex = CheckedMutex<std::mutex>;
using RecursiveMutex = CheckedMutex<std::recursive_mutex>;

// Holds a mutex during its life.
template <class Kind> class RSOCKET_CHECKED(scoped_lockable) Guard {
  public:
    explicit Guard(Kind& mutex) RSOCKET_CHECKED(acquire_capability(mutex)) : mutex_(mutex) { mutex_.lock(); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
    ~Guard() RSOCKET_CHECKED(release_capability()) { mutex_.unlock(); }

  private:
    Kind& mutex_;
};

} // namespace rsockets
