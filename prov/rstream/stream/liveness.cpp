// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/stream/liveness.hpp"

#include <algorithm>
#include <utility>

#include <sys/timerfd.h>

namespace rstream {

void Liveness::set_timer(base::Descriptor timer) {
    const base::Guard lock(mutex_);
    timer_ = std::move(timer);
}

int Liveness::timer_fd() {
    const base::Guard lock(mutex_);
    return timer_.get();
}

void Liveness::start(const KeepaliveSettings& settings, Time now) {
    const base::Guard lock(mutex_);
    keepalive_.start(settings, now);
    user_timeout_.start(settings.timeout, now);
    keepalive_on_.store(settings.on(), std::memory_order_release);
    user_timeout_on_.store(settings.timeout != 0, std::memory_order_release);
    rests_.store(false, std::memory_order_relaxed);
    set_time(next_time(true));
}

void Liveness::stop() {
    const base::Guard lock(mutex_);
    keepalive_.stop();
    user_timeout_.stop();
    keepalive_on_.store(false, std::memory_order_release);
    user_timeout_on_.store(false, std::memory_order_release);
    set_time({});
}

// The zero time means never.
Liveness::Time Liveness::next_time(bool outstanding) const {
    const bool of_data = user_timeout_.on() && outstanding;
    return !keepalive_.on() ? (of_data ? user_timeout_.due() : Time{})
           : of_data        ? std::min(keepalive_.due(), user_timeout_.due())
                            : keepalive_.due();
}

// Either this finds that checks rest, or check() finds what was posted: both store before they load.
void Liveness::note_posted() {
    posted_.store(true, std::memory_order_seq_cst);
    if (!rests_.load(std::memory_order_seq_cst)) {
        return;
    }
    const base::Guard lock(mutex_);
    if (rests_.exchange(false, std::memory_order_relaxed)) {
        user_timeout_.resume(std::chrono::steady_clock::now());
        set_time(next_time(true));
    }
}

void Liveness::set_time(Time when) {
    if (timer_.open() && (when != Time{} || timer_at_ != Time{})) {
        const auto since = std::chrono::duration_cast<std::chrono::nanoseconds>(when.time_since_epoch()).count();
        itimerspec spec{};
        spec.it_value = {since / 1000000000, since % 1000000000};
        timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &spec, nullptr);
        timer_at_ = when;
    }
}

bool Liveness::due() {
    if (keepalive_on_.load(std::memory_order_acquire)) {
        return true;
    }
    if (!user_timeout_on_.load(std::memory_order_acquire)) {
        return false;
    }
    const uint32_t polls = polls_.load(std::memory_order_relaxed);
    polls_.store(polls + 1, std::memory_order_relaxed);
    return polls % polls_a_check == 0;
}

Liveness::Verdict Liveness::check(Time now) {
    const base::Guard lock(mutex_);
    if (!keepalive_.on() && !user_timeout_.on()) {
        return Verdict::well;
    }
    const bool probed = probe_in_flight_.load(std::memory_order_acquire);
    if (arrived_.exchange(false, std::memory_order_acquire)) {
        keepalive_.received(now);
        user_timeout_.received();
    }
    if (completed_.exchange(false, std::memory_order_acquire)) {
        keepalive_.moved(now);
        if (!probed) { // iWARP completes what its TCP has accepted: after a probe, that proves nothing
            user_timeout_.moved();
        }
    }
    const bool outstanding = probed || posted_.load(std::memory_order_relaxed);
    const auto of_silence = keepalive_.check(now);
    const auto of_data = user_timeout_.check(now, outstanding);
    if (of_silence == KeepaliveTimer::Verdict::lost || of_data == UserTimeout::Verdict::lost) {
        return Verdict::lost;
    }
    if (now >= timer_at_) { // else the timer is early enough, and activity costs no system call
        rests_.store(!outstanding, std::memory_order_seq_cst);
        const bool rests = !outstanding && !posted_.load(std::memory_order_seq_cst);
        rests_.store(rests, std::memory_order_relaxed);
        set_time(next_time(!rests));
    }
    if (of_silence == KeepaliveTimer::Verdict::ask || of_data == UserTimeout::Verdict::ask) {
        probe_wanted_.store(true, std::memory_order_release);
        return Verdict::ask;
    }
    return Verdict::well;
}

bool Liveness::begin_probe() {
    if (probe_in_flight_.load(std::memory_order_acquire)) {
        probe_wanted_.store(false, std::memory_order_relaxed);
        return false;
    }
    probe_in_flight_.store(true, std::memory_order_release);
    posted_before_probe_ = posted_.exchange(false, std::memory_order_relaxed);
    return true;
}

void Liveness::probe_posted() {
    probe_wanted_.store(false, std::memory_order_relaxed);
    const base::Guard lock(mutex_);
    keepalive_.posted();
}

void Liveness::probe_refused() {
    posted_.store(posted_before_probe_, std::memory_order_relaxed); // first: something is outstanding all the time
    probe_in_flight_.store(false, std::memory_order_release);
}

} // namespace rstream
