// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A thread that the test stops at a lock which it holds.
#pragma once

#include <atomic>
#include <fstream>
#include <functional>
#include <future>
#include <string>
#include <thread>

#include <unistd.h>

namespace preload_test {

// Until a thread of this process has ended, or has gone to sleep many times: so it does that waits for a lock.
inline void await_thread_at_lock(long id) {
    constexpr long sleeps = 20;
    const std::string path = "/proc/self/task/" + std::to_string(id) + "/status";
    for (long slept = 0; slept < sleeps;) {
        std::ifstream file(path);
        std::string word;
        while (file >> word && word != "voluntary_ctxt_switches:") {
        }
        if (!(file >> slept)) {
            return;
        }
        usleep(1000); // nothing tells of it
    }
}

// A thread that runs body, and waits for a lock in it, unless it has ended.
class AtLock {
  public:
    explicit AtLock(const std::function<void()>& body)
        : thread_([this, body] {
              id_.set_value(gettid());
              body();
              ended_ = true;
          }) {
        await_thread_at_lock(id_.get_future().get());
    }
    AtLock(const AtLock&) = delete;
    AtLock& operator=(const AtLock&) = delete;
    ~AtLock() { thread_.join(); }
    [[nodiscard]] bool has_ended() const { return ended_; }

  private:
    std::promise<long> id_;
    std::atomic<bool> ended_{false};
    std::thread thread_;
};

} // namespace preload_test
