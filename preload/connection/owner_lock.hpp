// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A lock in memory that a process shares with its children, for sections of some microseconds in which nothing sleeps.
// It records its owner: a process that is killed in such a section does not block the others, and acquire() fails in a
// signal handler that interrupts the owner, and in its children, for which it may wait, instead of a deadlock.
#pragma once

#include <atomic>
#include <cstdint>

#include <sys/types.h>

namespace preload {

// The calling thread's id, without a system call except the first time and after fork.
pid_t thread_id();
// In a child after fork. False: it is in another PID namespace than its parent. Neither can see there whether the other
// one has ended while it holds a lock, and would wait forever.
bool forget_thread_id();
// In a child after a fork in which OwnerLock::note_fork() has returned true.
void note_interrupted_parent();

class OwnerLock {
  public:
    // False: the calling thread holds it already, in the code that the caller has interrupted; or the owner has made
    // this process, or one of its ancestors, in a signal handler that has interrupted it, and did not release the lock
    // for some milliseconds.
    [[nodiscard]] bool acquire();
    // False: it is held.
    [[nodiscard]] bool try_acquire();
    void release() {
        word_.store(0, std::memory_order_release);
        if (waited_.load(std::memory_order_relaxed) != 0) [[unlikely]] {
            give_way();
        }
    }
    // The calling thread is about to make a child. True: it holds the lock, so that it must be in a signal handler.
    bool note_fork();
    // The calling thread holds it, or has left the section by longjmp.
    [[nodiscard]] bool is_own() const;
    // For the private copy in a child after fork.
    void forget() {
        word_.store(0, std::memory_order_relaxed);
        waited_.store(0, std::memory_order_relaxed);
    }

  private:
    bool try_acquire(uintptr_t frame);
    bool wait(uintptr_t frame);
    void give_way();

    std::atomic<uint64_t> word_{0};   // the owner, see owner_lock.cpp
    std::atomic<uint32_t> waited_{0}; // a thread waits: the owner yields after release, to let it go first
    uintptr_t frame_ = 0;             // the owner's stack frame in acquire()
};

} // namespace preload
