// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Detects the loss of a silent peer, on a core that can probe it: keepalive and the user timeout behind one timer.
// Nothing is sent here. The stream reports activity, calls `check` when it is `due`, and posts a probe on request: a
// remote read of zero bytes, which the peer's adapter answers without its program.
//
// The timer runs only while there is something to detect: with keepalive, always; else while something is outstanding.
//
// Threads: any. A report costs a load or a store for each message; `check`, new settings, and the first message after
// a pause take the lock.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include <rdma/fabric.h>

#include "base/descriptor.hpp"
#include "base/mutex.hpp"
#include "prov/rstream/stream/keepalive_timer.hpp"
#include "prov/rstream/stream/user_timeout.hpp"

namespace rstream {

class Liveness {
  public:
    using Time = std::chrono::steady_clock::time_point;
    enum class Verdict : uint8_t { well, ask, lost };

    // The timer wakes waiters for a check while nothing else wakes them. Set once, before the first `start`.
    void set_timer(base::Descriptor timer) BASE_EXCLUDES(mutex_);
    [[nodiscard]] int timer_fd() BASE_EXCLUDES(mutex_);

    void start(const KeepaliveSettings& settings, Time now) BASE_EXCLUDES(mutex_);
    void stop() BASE_EXCLUDES(mutex_);

    // ---- activity
    void on_posted() BASE_EXCLUDES(mutex_) {
        if (!posted_.load(std::memory_order_relaxed)) [[unlikely]] {
            note_posted();
        }
    }
    void on_completed() { completed_.store(true, std::memory_order_release); }
    void on_arrival() { arrived_.store(true, std::memory_order_release); }

    // Whether to call `check` now: always while keepalive is on. For the user timeout alone, which is not urgent, once
    // in `polls_a_check` calls, since a check reads the clock.
    [[nodiscard]] bool due();
    Verdict check(Time now) BASE_EXCLUDES(mutex_);

    // ---- probes, posting side
    // The context of the probe's work request and of its completion.
    [[nodiscard]] void* probe_context() { return &probe_context_; }
    [[nodiscard]] bool probe_wanted() const { return probe_wanted_.load(std::memory_order_acquire); }
    // Called before the probe is given to the core. False if one is in flight, whose answer is enough.
    bool begin_probe();
    void probe_posted() BASE_EXCLUDES(mutex_);
    void probe_refused(); // by the core: the probe is still wanted
    // On the progress side.
    void probe_answered() {
        probe_in_flight_.store(false, std::memory_order_release);
        on_arrival();
    }

    static constexpr uint32_t polls_a_check = 16;

  private:
    void note_posted() BASE_EXCLUDES(mutex_);
    void set_time(Time when) BASE_REQUIRES(mutex_);
    [[nodiscard]] Time next_time(bool outstanding) const BASE_REQUIRES(mutex_);

    base::Mutex mutex_; // a leaf
    base::Descriptor timer_ BASE_GUARDED_BY(mutex_);
    Time timer_at_ BASE_GUARDED_BY(mutex_);
    KeepaliveTimer keepalive_ BASE_GUARDED_BY(mutex_);
    UserTimeout user_timeout_ BASE_GUARDED_BY(mutex_);

    std::atomic<bool> keepalive_on_{false};
    std::atomic<bool> user_timeout_on_{false};
    std::atomic<uint32_t> polls_{0};     // approximate: threads may count at once
    std::atomic<bool> posted_{false};    // a work request, since the last probe
    std::atomic<bool> rests_{false};     // the user timeout: no check is due until something is posted
    std::atomic<bool> completed_{false}; // a work request, since the last check
    std::atomic<bool> arrived_{false};   // an arrival, since the last check
    std::atomic<bool> probe_wanted_{false};
    std::atomic<bool> probe_in_flight_{false};
    bool posted_before_probe_ = false; // posting side
    fi_context2 probe_context_{};
};

} // namespace rstream
