// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// When unacknowledged data ends a connection, where the core itself would retransmit forever. Without I/O and without a
// clock, as in keepalive_timer.hpp. The connection is checked four times within the timeout, and only such checks
// count: answers may wait unread for a program that made no calls. So a loss is detected between one and five quarters
// of the timeout after the first unacknowledged byte, or the last arrival. An end with nothing in flight sends no
// probes, and none is sent while messages arrive.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>

namespace rstream {

// Milliseconds: the timeout of Linux's TCP, with 15 retransmissions (tcp_retries2).
constexpr size_t default_user_timeout = 925000;

class UserTimeout {
  public:
    using Time = std::chrono::steady_clock::time_point;
    enum class Verdict { well, ask, lost };

    void start(size_t milliseconds, Time now) {
        on_ = milliseconds != 0;
        period_ = std::chrono::milliseconds(std::max<size_t>((milliseconds + checks - 1) / checks, 1));
        silent_ = 0;
        waits_ = received_ = moved_ = false;
        resume(now);
    }
    void stop() { on_ = false; }
    // Something is outstanding again, after checks had paused.
    void resume(Time now) { due_ = now + period_; }
    [[nodiscard]] bool on() const { return on_; }

    // Activity that only a live peer can have caused.
    void received() { received_ = true; }
    // Activity that the peer has caused, unless the adapter only buffers.
    void moved() { moved_ = true; }

    [[nodiscard]] Time due() const { return due_; }

    // `outstanding`: something was sent that is not known to have arrived; a probe determines that.
    Verdict check(Time now, bool outstanding) {
        if (!on_ || now < due_) {
            return Verdict::well;
        }
        due_ = now + period_;
        const bool received = std::exchange(received_, false);
        const bool moved = std::exchange(moved_, false);
        const bool waited = std::exchange(waits_, outstanding);
        if (!outstanding || received) {
            silent_ = 0;
            return Verdict::well;
        }
        silent_ = waited && !moved ? silent_ + 1 : 0;
        return silent_ >= checks ? Verdict::lost : Verdict::ask;
    }

  private:
    static constexpr size_t checks = 4;

    bool on_ = false;
    std::chrono::milliseconds period_{};
    size_t silent_ = 0;  // checks in a row
    bool waits_ = false; // something was outstanding at the last check
    bool received_ = false;
    bool moved_ = false;
    Time due_;
};

} // namespace rstream
