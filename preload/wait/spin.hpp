// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Spinning on memory for a short time before sleeping, where another processor may write it meanwhile. Each thread
// adapts to its recent waits: it spins while most of them are short, and sleeps at once while they are not, or while
// threads compete for its processor.
#pragma once

#include <algorithm>
#include <cstdint>

#include "preload/base/system.hpp"
#include "preload/stats/page.hpp"

namespace preload::spin {

// Maximum spin time in ns; 0: never (one processor, or RSPRELOAD_SPIN=0).
uint32_t max_ns();

namespace detail {

// A thread's record of its waits. Long ones weigh more: spinning through them wastes a processor's time.
class Experience {
  public:
    [[nodiscard]] bool pays_off() const { return score_ > 0; }
    void was_short(uint64_t now) {
        if (now >= pause_until_ && score_ < most) {
            ++score_;
        }
    }
    void was_long() { score_ = score_ > cost_of_long ? score_ - cost_of_long : 0; }
    // Another thread had the processor while this one spun: there are more threads than processors. What arrives
    // meanwhile waits for this thread's time slice, while a sleeping thread would be woken at once; so spinning is
    // tried ever more rarely while that lasts. Threads of the kernel, and of a host below it, take a moment every few
    // milliseconds; runnable threads of programs come again at once, or stay.
    void was_displaced(uint64_t now, uint64_t for_ns) {
        constexpr uint64_t least_ns = 10000000;
        constexpr uint64_t most_ns = 160000000;
        constexpr uint64_t moment_ns = 150000;
        constexpr uint64_t at_once_ns = 1000000;
        const bool now_and_then = for_ns < moment_ns && now > displaced_at_ + at_once_ns;
        displaced_at_ = now;
        if (now_and_then) {
            return;
        }
        const bool again = now < pause_until_ + 4 * pause_ns_;
        pause_ns_ = again ? std::min(2 * pause_ns_, most_ns) : least_ns;
        pause_until_ = now + pause_ns_;
        score_ = 0;
    }

  private:
    static constexpr int most = 16;
    static constexpr int cost_of_long = 4;
    int score_ = 0;
    uint64_t pause_until_ = 0;
    uint64_t pause_ns_ = 0;
    uint64_t displaced_at_ = 0;
};

extern constinit thread_local Experience experience;
inline constexpr uint64_t yield_after_ns = 4000; // delays others by at most this
inline constexpr uint64_t displaced_ns = 15000;  // longer than a yield without another runnable thread

} // namespace detail

// True: done() returned true.
template <class Done> bool until(Done&& done) {
    const uint32_t most = max_ns();
    detail::Experience& experience = detail::experience;
    if (most == 0 || !experience.pays_off()) {
        return done();
    }
    const uint64_t begin = sys::now_ns();
    uint64_t yielded = begin;
    for (;;) {
        constexpr int polls = 16;
        for (int i = 0; i < polls; ++i) {
            if (done()) {
                experience.was_short(yielded);
                return true;
            }
            __builtin_ia32_pause();
        }
        const uint64_t now = sys::now_ns();
        if (now - begin > most) {
            return false;
        }
        if (now - yielded > detail::yield_after_ns) {
            sys::call(SYS_sched_yield);
            yielded = sys::now_ns();
            if (yielded - now > detail::displaced_ns) {
                experience.was_displaced(yielded, yielded - now);
                if (!experience.pays_off()) {
                    return done();
                }
            }
        }
    }
}

// Learns from a sleep, with or without a spin before it. notified_at: when the waiter was notified, 0 if unknown. The
// rest of the sleep is the time that a processor takes to wake up: often longer than the wait itself, and spinning
// would have saved both.
inline void learn(uint64_t begin, uint64_t end, uint64_t notified_at = 0) {
    constexpr uint64_t surely_worth_ns = 25000; // less than spinning saves
    if (const uint32_t most = max_ns(); most != 0) {
        const bool soon = notified_at != 0 && notified_at < begin + surely_worth_ns;
        if (soon || end - begin < most) {
            detail::experience.was_short(sys::now_ns());
        } else {
            detail::experience.was_long();
        }
    }
}

// The same, for a thread of the program, whose sleeps rsstat(1) shows.
inline void slept(uint64_t begin, uint64_t end, uint64_t notified_at = 0) {
    stats::slept(end - begin);
    learn(begin, end, notified_at);
}

} // namespace preload::spin
