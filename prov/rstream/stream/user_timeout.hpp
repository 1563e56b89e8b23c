// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// When data that nobody acknowledges ends a connection, where the core itself would repeat it for ever. Time is given,
// nothing is done here, as in keepalive_timer.hpp. The connection is looked at four times within the time, and only
// such looks count: a program that was away has its answers waiting. So a loss is found between once and five quarters
// of the time after the first byte that was not acknowledged. An end that has nothing under way is never asked
// anything.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>

namespace rstream {

// Milliseconds: what Linux's TCP gets to by itself, with 15 repetitions (tcp_retries2).
constexpr size_t default_user_timeout = 925000;

class UserTimeout {
  public:
    using Time = std::chrono::steady_clock::time_point;
    enum class Verdict { well, ask, lost };

    void start(size_t milliseconds, Time now) {
        on_ = milliseconds != 0;
        period_ = std::chrono::milliseconds(std::max<size_t>((milliseconds + looks - 1) / looks, 1));
        silent_ = 0;
        due_ = now + period_;
    }
    void stop() { on_ = false; }
    [[nodiscard]] bool on() const { return on_; }

    // Something came that only a peer that is there can have caused.
    void heard() { silent_ = 0; }

    [[nodiscard]] Time due() const { return due_; }

    // `outstanding`: something was sent that is not known to have arrived. To ask is to find out.
    Verdict look(Time now, bool outstanding) {
        if (!on_ || now < due_) {
            return Verdict::well;
        }
        due_ = now + period_;
        if (!outstanding) {
            silent_ = 0;
            return Verdict::well;
        }
        return ++silent_ > looks ? Verdict::lost : Verdict::ask;
    }

  private:
    static constexpr size_t looks = 4;

    bool on_ = false;
    std::chrono::milliseconds period_{};
    size_t silent_ = 0;
    Time due_;
};

} // namespace rstream
