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
struct SendSpace {
    std::atomic<int> waiters{0};      // threads in a sending call that found no space
    std::atomic<uint64_t> starved{0}; // times that no space was found
    std::atomic<bool> polled{false};  // a poll has reported no space
    std::atomic<uint64_t> told{0};    // `starved`, when waiters were last told of space that another call has found

    // Whether a call or a waiter has found no space since that was last asked, or still waits for it.
    bool is_awaited() {
        const uint64_t now = starved.load();
        return told.exchange(now) != now || polled.load() || waiters.load() > 0;
    }
};

// A sending call: `begin` before each attempt, `end` after it.
class SendSpaceWaiter {
  public:
    SendSpaceWaiter(SendSpace& space, WaitQueue& wait_queue) : send_space_(space), wait_queue_(wait_queue) {}
    SendSpaceWaiter(const SendSpaceWaiter&) = delete;
    SendSpaceWaiter& operator=(const SendSpaceWaiter&) = delete;
    ~SendSpaceWaiter() {
        if (waits_) {
            send_space_.waiters.fetch_sub(1);
        }
    }

    void begin() {
        if (starved_ && !waits_) { // before the attempt: a send between it and the sleep must see us
            waits_ = true;
            send_space_.waiters.fetch_add(1);
        }
    }
    void end(ssize_t sent) {
        if (sent == -EAGAIN) {
            starved_ = true;
        } else if (send_space_.waiters.load() > (waits_ ? 1 : 0) ||
                   (send_space_.polled.load() && send_space_.polled.exchange(false))) {
            wait_queue_.notify_all();
        }
    }

  private:
    SendSpace& send_space_;
    WaitQueue& wait_queue_;
    bool starved_ = false;
    bool waits_ = false;
};

} // namespace rsockets
