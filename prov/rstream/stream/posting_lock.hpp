// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The lock of the posting side. A thread that only requests a flush does not wait for it: it leaves a request, and the
// thread that holds the lock does that work after its own. So a receiving thread never waits for a sending one.
#pragma once

#include <atomic>
#include <mutex>

#include "base/mutex.hpp"

namespace rstream {

class BASE_CHECKED(capability("mutex")) PostingLock {
  public:
    void lock() BASE_CHECKED(acquire_capability()) { mutex_.lock(); }
    // Releases the lock, and does the work that was requested meanwhile.
    template <class Work> void unlock(const Work& work) BASE_CHECKED(release_capability()) {
        mutex_.unlock();
        if (requested_.load()) {
            request(work);
        }
    }

    // Does the work with the lock held, or leaves it to the thread that holds the lock at present. The work may be done
    // once for several requests.
    template <class Work> void request(const Work& work) BASE_UNCHECKED { // `work` names the lock by its owner
        requested_.store(true);
        while (requested_.load() && mutex_.try_lock()) {
            const std::lock_guard held(mutex_, std::adopt_lock); // the work may throw
            requested_.store(false);
            work();
        }
    }

  private:
    std::mutex mutex_;
    std::atomic<bool> requested_{false};
};

} // namespace rstream
