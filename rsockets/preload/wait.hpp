// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// How long a call may still wait, which may have to begin again in between.
#pragma once

#include <ctime>

namespace preload {

inline constexpr long nanoseconds_a_second = 1000000000;
inline constexpr time_t longest_time = 1000000000; // seconds, some thirty years: more is for ever

class TimeLeft {
  public:
    // Null, or far enough away: without end.
    explicit TimeLeft(const timespec* limit) : limited_(limit != nullptr && limit->tv_sec <= longest_time) {
        if (limited_) {
            clock_gettime(CLOCK_MONOTONIC, &end_);
            end_.tv_sec += limit->tv_sec;
            end_.tv_nsec += limit->tv_nsec;
            if (end_.tv_nsec >= nanoseconds_a_second) {
                end_.tv_nsec -= nanoseconds_a_second;
                ++end_.tv_sec;
            }
        }
    }

    const timespec* left() {
        if (!limited_) {
            return nullptr;
        }
        timespec now{};
        clock_gettime(CLOCK_MONOTONIC, &now);
        left_ = {end_.tv_sec - now.tv_sec, end_.tv_nsec - now.tv_nsec};
        if (left_.tv_nsec < 0) {
            left_.tv_nsec += nanoseconds_a_second;
            --left_.tv_sec;
        }
        if (left_.tv_sec < 0) {
            left_ = {};
        }
        return &left_;
    }

  private:
    bool limited_;
    timespec end_{};
    timespec left_{};
};

inline bool valid(const timespec& time) {
    return time.tv_sec >= 0 && time.tv_nsec >= 0 && time.tv_nsec < nanoseconds_a_second;
}

inline timespec of_milliseconds(int time) { return {time / 1000, long{time % 1000} * 1000000}; }

} // namespace preload
