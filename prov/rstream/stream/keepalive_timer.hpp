// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// When a silent peer is probed, and when it is considered lost. A state machine without I/O and without a clock: its
// owner calls `look` when it is `due`, sends a probe for verdict `ask`, and reports activity.
//
// The transports below are reliable: one probe is enough, and `count` counts intervals without an answer. An interval
// counts only if `look` was called: the answer may wait unread for a program that made no call for an hour, which must
// not find the peer lost.
#pragma once

#include <chrono>
#include <cstddef>

namespace rstream {

// The kernel's own limits; tcp(7) has the times in seconds.
constexpr size_t keepalive_time_max = 32767000;
constexpr size_t keepalive_count_max = 127;

// Milliseconds, where tcp(7) has seconds: TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT.
struct KeepaliveSettings {
    size_t idle = 0; // of silence before the first probe; 0 is never
    size_t interval = 75000;
    size_t count = 9;
    size_t timeout = 0; // for unacknowledged data, TCP_USER_TIMEOUT: see user_timeout.hpp; 0 is never

    [[nodiscard]] bool on() const { return idle != 0; }
    friend bool operator==(const KeepaliveSettings&, const KeepaliveSettings&) = default;
};

class KeepaliveTimer {
  public:
    using Time = std::chrono::steady_clock::time_point;
    enum class Verdict { well, ask, lost };

    void start(const KeepaliveSettings& settings, Time now) {
        settings_ = settings;
        received(now);
    }
    void stop() { settings_.idle = 0; }
    [[nodiscard]] bool on() const { return settings_.on(); }
    [[nodiscard]] const KeepaliveSettings& settings() const { return settings_; }

    // Activity that only a live peer can have caused.
    void received(Time now) {
        asking_ = false;
        posted_ = false;
        due_ = now + std::chrono::milliseconds(settings_.idle);
    }
    // The probe was posted to the core.
    void posted() { posted_ = asking_; }
    // The core completed another work request of ours: for a probe that it had no space for yet, the intervals so far
    // do not count.
    void moved(Time now) {
        if (asking_ && !posted_) {
            begin(now);
        }
    }

    [[nodiscard]] Time due() const { return due_; }

    Verdict check(Time now) {
        if (!on() || now < due_) {
            return Verdict::well;
        }
        if (!asking_) {
            asking_ = true;
            begin(now);
            return Verdict::ask;
        }
        if (++unanswered_ >= settings_.count) {
            return Verdict::lost;
        }
        due_ = now + std::chrono::milliseconds(settings_.interval);
        return Verdict::ask;
    }

  private:
    void begin(Time now) {
        unanswered_ = 0;
        due_ = now + std::chrono::milliseconds(settings_.interval);
    }

    KeepaliveSettings settings_;
    Time due_;
    size_t unanswered_ = 0;
    bool asking_ = false;
    bool posted_ = false;
};

} // namespace rstream
