// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The lock of the posting side. A thread that only wants posted what may go does not wait for it: it leaves a request,
// and the thread that has the lock does that work when it is done with its own. So a thread that receives never waits
// for one that sends.
#pragma once

#include <atomic>
#include <mutex>

#include "base/mutex.hpp"

namespace rstream {

class BASE_CHECKED(capability("mutex")) PostingLock {
  public:
    void lock() BASE_CHECKED(acquire_capability()) { mutex_.lock(); }
    // Lets go, and does what was requested meanwhile.
    template <class Work> void unlock(const Work& work) BASE_CHECKED(release_capability()) {
        mutex_.unlock();
        if (requested_.load()) {
            request(work);
        }
    }

    // Does the work with the lock held, or has the thread do it that holds the lock at present. The work may be done
    // once for several requests.
    template <class Work> void request(const Work& work) BASE_UNCHECKED { // `work` names the lock by its owner
        requested_.store(true);
        while (requested_.load() && mutex_.try_lock()) {
            requested_.store(false);
            work();
            mutex_.unlock();
        }
    }

  private:
    std::mutex mutex_;
    std::atomic<bool> requested_{false};
};

} // namespace rstream
