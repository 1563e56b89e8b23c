// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Send space that several threads wait for. The provider notifies sleeping threads of space, but only until any thread
// has sent: from then on it considers the request satisfied. So each sender makes the others try again.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdint>

#include <sys/types.h>

#include "rsockets/wait_queue.hpp"

namespace rsockets {

// Per socket.
struct Room {
    std::atomic<int> waiters{0};      // threads in a sending call that found no space
    std::atomic<uint64_t> starved{0}; // times that no space was found
    std::atomic<bool> polled{false};  // a poll has reported no space
};

// A sending call: `begin` before each attempt, `end` after it.
class RoomWaiter {
  public:
    RoomWaiter(Room& room, WaitQueue& wait_queue) : room_(room), wait_queue_(wait_queue) {}
    RoomWaiter(const RoomWaiter&) = delete;
    RoomWaiter& operator=(const RoomWaiter&) = delete;
    ~RoomWaiter() {
        if (waits_) {
            room_.waiters.fetch_sub(1);
        }
    }

    void begin() {
        if (starved_ && !waits_) { // before the attempt: a send between it and the sleep must see us
            waits_ = true;
            room_.waiters.fetch_add(1);
        }
    }
    void end(ssize_t sent) {
        if (sent == -EAGAIN) {
            starved_ = true;
        } else if (room_.waiters.load() > (waits_ ? 1 : 0) || (room_.polled.load() && room_.polled.exchange(false))) {
            wait_queue_.notify_all();
        }
    }

  private:
    Room& room_;
    WaitQueue& wait_queue_;
    bool starved_ = false;
    bool waits_ = false;
};

} // namespace rsockets
