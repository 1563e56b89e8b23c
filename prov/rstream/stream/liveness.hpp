// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Whether a silent peer is still there, on a core that can be asked: keepalive and the user timeout behind one timer.
// Nothing is sent here. The stream reports what moves, calls `check` when it is `due`, and posts a probe when told to:
// a remote read of no bytes, which the peer's adapter answers without its program.
//
// Threads: any. What is reported for each message is one relaxed or release store; the lock is taken by `check` and by
// what changes the settings.
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

    // The timer makes waiters check while nothing else wakes them. Set once, before the first `start`.
    void set_timer(base::Descriptor timer) BASE_EXCLUDES(mutex_);
    [[nodiscard]] int timer_fd() BASE_EXCLUDES(mutex_);

    void start(const KeepaliveSettings& settings, Time now) BASE_EXCLUDES(mutex_);
    void stop() BASE_EXCLUDES(mutex_);

    // ---- what moved
    void on_posted() { posted_.store(true, std::memory_order_relaxed); }
    void on_completed() { completed_.store(true, std::memory_order_release); }
    void on_arrival() { arrived_.store(true, std::memory_order_release); }

    // Whether `check` is to be called now: always while keepalive is on. For the user timeout alone, which is no hurry,
    // once in `polls_a_check` calls, since a check reads the clock.
    [[nodiscard]] bool due();
    Verdict check(Time now) BASE_EXCLUDES(mutex_);

    // ---- probes, posting side
    // What the core is given it with, and its completion carries.
    [[nodiscard]] void* probe_context() { return &probe_context_; }
    [[nodiscard]] bool probe_wanted() const { return probe_wanted_.load(std::memory_order_acquire); }
    // Before the probe is given to the core. False if one is in flight, whose answer will do.
    bool begin_probe();
    void probe_posted() BASE_EXCLUDES(mutex_);
    void probe_refused(); // by the core: it is asked again after an interval
    // On the progress side.
    void probe_answered() {
        probe_in_flight_.store(false, std::memory_order_release);
        on_arrival();
    }

    static constexpr uint32_t polls_a_check = 16;

  private:
    void set_time(Time when) BASE_REQUIRES(mutex_);
    [[nodiscard]] Time next_time() const BASE_REQUIRES(mutex_);

    base::Mutex mutex_; // a leaf
    base::Descriptor timer_ BASE_GUARDED_BY(mutex_);
    Time timer_at_ BASE_GUARDED_BY(mutex_);
    KeepaliveTimer keepalive_ BASE_GUARDED_BY(mutex_);
    UserTimeout user_timeout_ BASE_GUARDED_BY(mutex_);

    std::atomic<bool> keepalive_on_{false};
    std::atomic<bool> user_timeout_on_{false};
    std::atomic<uint32_t> polls_{0};     // approximate: threads may count at once
    std::atomic<bool> posted_{false};    // something, since the last probe
    std::atomic<bool> completed_{false}; // something of ours, since the last check
    std::atomic<bool> arrived_{false};   // something of the peer's, since the last check
    std::atomic<bool> probe_wanted_{false};
    std::atomic<bool> probe_in_flight_{false};
    bool posted_before_probe_ = false; // posting side
    fi_context2 probe_context_{};
};

} // namespace rstream
