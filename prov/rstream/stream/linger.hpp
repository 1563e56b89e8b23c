// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// How long a closed stream continues to deliver sent data: the call that closes it waits for the linger time that the
// program has set, and the stream lingers in the background after that. A stream whose peer does not read is given up.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace rstream {

class Linger {
  public:
    using Time = std::chrono::steady_clock::time_point;
    // TCP gives up after this long in FIN_WAIT_2.
    static constexpr std::chrono::seconds in_background{60};

    void start(Time now, std::chrono::milliseconds wait) {
        wait_until_ = now + wait;
        give_up_at_ = now + std::max<std::chrono::milliseconds>(in_background, wait);
    }
    // Milliseconds that the call may still wait, rounded up; 0 or less: none.
    [[nodiscard]] int64_t wait_left(Time now) const {
        return std::chrono::ceil<std::chrono::milliseconds>(wait_until_ - now).count();
    }
    // True before `start` too.
    [[nodiscard]] bool given_up(Time now) const { return now >= give_up_at_; }

  private:
    Time wait_until_;
    Time give_up_at_;
};

} // namespace rstream
