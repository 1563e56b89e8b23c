// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Room to send, where several threads wait for it. The provider tells whoever sleeps that there is some, but only until
// anyone has sent: from then on it takes the want for satisfied. So whoever sends has the others look again.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdint>

#include <sys/types.h>

#include "rsockets/bell.hpp"

namespace rsockets {

// Of a socket.
struct Room {
    std::atomic<int> waiters{0};      // threads in a call that sends
    std::atomic<uint64_t> starved{0}; // how often there was none
    std::atomic<bool> polled{false};  // someone who polls was told that there is none
};

// One call that sends: `begin` before each try, `end` behind it.
class RoomWaiter {
  public:
    RoomWaiter(Room& room, Bell& bell) : room_(room), bell_(bell) {}
    RoomWaiter(const RoomWaiter&) = delete;
    RoomWaiter& operator=(const RoomWaiter&) = delete;
    ~RoomWaiter() {
        if (waits_) {
            room_.waiters.fetch_sub(1);
        }
    }

    void begin() {
        if (starved_ && !waits_) { // before the try: who sends between it and the sleep is to know of us
            waits_ = true;
            room_.waiters.fetch_add(1);
        }
    }
    void end(ssize_t sent) {
        if (sent == -EAGAIN) {
            starved_ = true;
        } else if (room_.waiters.load() > (waits_ ? 1 : 0) || (room_.polled.load() && room_.polled.exchange(false))) {
            bell_.ring();
        }
    }

  private:
    Room& room_;
    Bell& bell_;
    bool starved_ = false;
    bool waits_ = false;
};

} // namespace rsockets
