// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Deadlines, one per object, and an fd that is readable from the earliest of them on.
#pragma once

#include <cerrno>
#include <chrono>
#include <set>
#include <unordered_map>
#include <utility>

#include <sys/timerfd.h>

#include "base/descriptor.hpp"

namespace rstream {

template <class Who> class Deadlines {
  public:
    using Time = std::chrono::steady_clock::time_point;

    int open() {
        timer_ = base::Descriptor(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
        return timer_.get() < 0 ? -errno : 0;
    }
    [[nodiscard]] int fd() const { return timer_.get(); }
    [[nodiscard]] bool empty() const { return order_.empty(); }

    // Replaces the object's previous deadline.
    void set(Who* who, Time when) {
        if (const auto old = times_.find(who); old != times_.end()) {
            if (old->second == when) {
                return;
            }
            order_.erase({old->second, who});
        }
        times_[who] = when;
        order_.insert({when, who});
        arm();
    }

    void clear(Who* who) {
        const auto old = times_.find(who);
        if (old == times_.end()) {
            return;
        }
        order_.erase({old->second, who});
        times_.erase(old);
        arm();
    }

    // An object whose deadline has passed, and removes that deadline; null if there is none.
    Who* take_due(Time now) {
        if (order_.empty() || order_.begin()->first > now) {
            return nullptr;
        }
        Who* who = order_.begin()->second;
        clear(who);
        return who;
    }

  private:
    void arm() {
        const Time first = order_.empty() ? Time() : order_.begin()->first; // zero disarms the timer
        if (first == armed_) {
            return;
        }
        armed_ = first;
        constexpr int64_t second = 1000000000;
        const int64_t at = std::chrono::nanoseconds(first.time_since_epoch()).count();
        const itimerspec time{{0, 0}, {at / second, at % second}};
        // It is the own timer, and no time of this clock is negative: this cannot fail.
        timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &time, nullptr);
    }

    base::Descriptor timer_;
    std::set<std::pair<Time, Who*>> order_;
    std::unordered_map<Who*, Time> times_;
    Time armed_;
};

} // namespace rstream
