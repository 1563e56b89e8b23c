// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// When buffers that have grown are larger than needed: after a period in which no more bytes passed than their first
// sizes hold. The timer runs only while a buffer is larger than at first. It wakes a sleeping waiter once in a period,
// through an fd that exists as long as it runs; a program that does not sleep finds it due in its calls.
//
// Threads: any. `running` and `due` take no lock.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <utility>

#include <sys/timerfd.h>

#include "base/descriptor.hpp"
#include "base/mutex.hpp"

namespace rstream {

class IdleTimer {
  public:
    // Bytes since the stream began.
    struct Traffic {
        uint64_t sent = 0;
        uint64_t received = 0;
    };
    // Which direction has had little of it.
    struct Idle {
        bool sending = false;
        bool receiving = false;
    };

    // `first_sizes`: of the buffers. A period of 0: never.
    IdleTimer(std::chrono::milliseconds period, const Traffic& first_sizes) : period_(period), little_(first_sizes) {}
    [[nodiscard]] const Traffic& first_sizes() const { return little_; }

    // Runs from now on, unless it does. `watch` adds the fd to what waiters sleep on: 0 or -errno. Without an fd, the
    // timer waits for calls.
    template <class Watch> void start(const Traffic& now, const Watch& watch) BASE_EXCLUDES(mutex_) {
        const base::Guard lock(mutex_);
        if (period_.count() == 0 || due_at_.load(std::memory_order_relaxed) != 0) {
            return;
        }
        base::Descriptor timer(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
        if (timer.open() && watch(timer.get()) == 0) {
            timer_ = std::move(timer);
        }
        before_ = now;
        set();
    }
    // Stops if `finished` still holds with the lock: a thread that has let a buffer grow calls `start` after that.
    // `unwatch` is the inverse of `watch`.
    template <class Finished, class Unwatch>
    void stop_if(const Finished& finished, const Unwatch& unwatch) BASE_EXCLUDES(mutex_) {
        const base::Guard lock(mutex_);
        if (!finished()) {
            return;
        }
        due_at_.store(0, std::memory_order_relaxed);
        if (timer_.open()) {
            unwatch(timer_.get());
            timer_.reset();
        }
    }
    [[nodiscard]] bool running() const { return due_at_.load(std::memory_order_relaxed) != 0; }

    // A period is over: call `check`.
    [[nodiscard]] bool due() const {
        const int64_t at = due_at_.load(std::memory_order_relaxed);
        if (at == 0) {
            return false;
        }
        // Reading the coarse clock costs a fraction, but it is late by some ticks.
        constexpr int64_t late = 100000000;
        return clock(CLOCK_MONOTONIC_COARSE) >= at - late && clock(CLOCK_MONOTONIC) >= at;
    }
    // Begins the next period. Of several threads that find it due, one gets the answer.
    [[nodiscard]] Idle check(const Traffic& now) BASE_EXCLUDES(mutex_) {
        const base::Guard lock(mutex_);
        if (!due()) {
            return {};
        }
        const Traffic before = std::exchange(before_, now);
        set();
        return {now.sent - before.sent <= little_.sent, now.received - before.received <= little_.received};
    }

  private:
    static int64_t clock(clockid_t id) {
        timespec time{};
        clock_gettime(id, &time);
        return int64_t{1000000000} * time.tv_sec + time.tv_nsec;
    }
    void set() BASE_REQUIRES(mutex_) {
        const int64_t period = std::chrono::nanoseconds(period_).count();
        const int64_t at = clock(CLOCK_MONOTONIC) + period;
        due_at_.store(at, std::memory_order_relaxed);
        if (timer_.open()) {
            constexpr int64_t second = 1000000000;
            itimerspec spec{};
            spec.it_value = {at / second, at % second};
            timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &spec, nullptr);
        }
    }

    const std::chrono::milliseconds period_;
    const Traffic little_;
    std::atomic<int64_t> due_at_{0}; // CLOCK_MONOTONIC, ns; 0: it does not run

    base::Mutex mutex_; // held over `watch` and `unwatch`, which take WaitSet's
    base::Descriptor timer_ BASE_GUARDED_BY(mutex_);
    Traffic before_ BASE_GUARDED_BY(mutex_);
};

} // namespace rstream
