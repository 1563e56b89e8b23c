// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Calls of one kind, receives or sends, that found nothing (no space): whether the program has been told of any since,
// and whether a waiter must still be woken, because another thread than the one that was told may sleep for it.
//
// Threads: any, sequentially consistent.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "prov/rstream/stream/blocked_threads.hpp"

namespace rstream {

class BlockedCalls {
  public:
    // ---- calls of the program
    void on_blocked() {
        if (threads_.enter() || !unreported()) {
            blocks_.fetch_add(1);
        }
    }
    // The calling thread knows what there is. One that finds nothing meanwhile is counted, and so not told.
    void on_notified() {
        threads_.leave();
        raise(reported_, blocks_.load());
        settle(reported_.load());
    }
    // A call of the other kind.
    void on_other_call() { threads_.awake(); }
    // The program has no call left to repeat.
    void drop() {
        const uint64_t blocks = blocks_.load();
        raise(reported_, blocks);
        raise(settled_, blocks);
    }

    // ---- fi_trywait
    // Whether the calling thread may sleep. `there` is checked after the thread is marked: another one that is told of
    // a change after that sees the mark. A thread that is blocked, and finds that there is something, is told to repeat
    // its calls, but only once: it may not be interested any more.
    template <class There> bool may_sleep(const There& there) {
        // What another thread is told from here on is not settled by this one: that is what it may sleep for.
        const uint64_t reported = reported_.load();
        threads_.sleep();
        bool free = true;
        if (threads_.contain_caller()) {
            bool found = there();
            if (!found && !unreported()) { // another thread has been told since, of what is gone again
                blocks_.fetch_add(1);
                found = there(); // a change before that has woken nobody
            }
            if (found) {
                threads_.leave();
                free = false;
            }
        }
        settle(reported);
        if (free) {
            forget_sleepers_in_time();
        }
        return free;
    }
    void cancel_wait() { threads_.awake(); }

    // A call was blocked, and no thread has been told since.
    [[nodiscard]] bool unreported() const { return blocks_.load() != reported_.load(); }
    // Or another thread has been told than the one that may sleep.
    [[nodiscard]] bool unsettled() const { return blocks_.load() != settled_.load(); }

  private:
    void settle(uint64_t reported) {
        if (reported > settled_.load() && !threads_.others_sleep()) {
            raise(settled_, reported);
        }
    }
    // A thread may never come back: it was cancelled, or has left the endpoint to others. Its signal would keep those
    // awake for good. Whoever sleeps has heard of it after so long.
    void forget_sleepers_in_time() {
        const uint64_t reported = reported_.load();
        if (reported == settled_.load() || unreported()) {
            kept_for_.store(0, std::memory_order_relaxed);
            return;
        }
        const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
        if (kept_for_.exchange(reported, std::memory_order_relaxed) != reported) {
            kept_since_.store(now, std::memory_order_relaxed);
        } else if (now - kept_since_.load(std::memory_order_relaxed) >
                   std::chrono::steady_clock::duration(longest_signal).count()) {
            threads_.wake_all();
            settle(reported);
        }
    }
    static void raise(std::atomic<uint64_t>& number, uint64_t to) {
        for (uint64_t found = number.load(); found < to && !number.compare_exchange_weak(found, to);) {
        }
    }

    static constexpr std::chrono::seconds longest_signal{1};

    std::atomic<uint64_t> blocks_{0};   // calls that were blocked, but not each in a row
    std::atomic<uint64_t> reported_{0}; // those before a thread was told
    std::atomic<uint64_t> settled_{0};  // those of which no thread sleeps any more
    BlockedThreads threads_;
    std::atomic<uint64_t> kept_for_{0}; // the reported calls for which other threads are signalled; 0: none
    std::atomic<int64_t> kept_since_{0};
};

} // namespace rstream
