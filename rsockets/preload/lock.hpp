// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The shim's own locks, for its slow paths. Signals wait while one is held: a handler may make the calls that are
// handled here.
#pragma once

#include <atomic>

#include <csignal>
#include <pthread.h>
#include <sched.h>

namespace preload {

// Of the calling thread.
class SignalsBlocked {
  public:
    SignalsBlocked() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  private:
    sigset_t before_{};
};

// For a few instructions.
class SpinLock {
  public:
    class Hold {
      public:
        explicit Hold(SpinLock& lock) : lock_(lock) {
            while (lock_.taken_.test_and_set(std::memory_order_acquire)) {
                sched_yield();
            }
        }
        Hold(const Hold&) = delete;
        Hold& operator=(const Hold&) = delete;
        ~Hold() { lock_.taken_.clear(std::memory_order_release); }

      private:
        const SignalsBlocked blocked_;
        SpinLock& lock_;
    };
    void forget() { taken_.clear(); } // in the child after a fork

  private:
    std::atomic_flag taken_{};
};

// One at a time changes what numbers stand for. May be taken again by the thread that has it.
class Changing {
  public:
    Changing() { pthread_mutex_lock(&mutex); }
    Changing(const Changing&) = delete;
    Changing& operator=(const Changing&) = delete;
    ~Changing() { pthread_mutex_unlock(&mutex); }

    static void forget(); // in the child after a fork

  private:
    const SignalsBlocked blocked_;
    static pthread_mutex_t mutex;
};

void forget_streams_lock(); // of stdio.cpp; the same

} // namespace preload
