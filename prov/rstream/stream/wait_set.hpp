// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The fd that a program sleeps on for one stream: an epoll set of the core's fds, and of an eventfd that wakes a waiter
// when another thread has read from the core the completion or event that the waiter sleeps for. The set is created on
// first use; most streams of a program that only polls never have one.
#pragma once

#include <atomic>
#include <span>
#include <vector>

#include "base/descriptor.hpp"
#include "base/mutex.hpp"

namespace rstream {

class WaitSet {
  public:
    // Adds an fd, whether the set is created before or after; it must be removed before it is closed. 0 or -errno.
    int add(int fd) BASE_EXCLUDES(mutex_);
    void remove(int fd) BASE_EXCLUDES(mutex_);

    // -1 before the set is created.
    [[nodiscard]] int fd() BASE_EXCLUDES(mutex_);
    // Creates the set of these fds and of the added ones, unless it exists. `due` returns whether a waiter must wake
    // already. 0 or -errno.
    template <class Due> int make(std::span<const int> fds, const Due& due) BASE_EXCLUDES(mutex_) {
        const base::Guard lock(mutex_);
        if (set_.open()) {
            return 0;
        }
        if (const int ret = open_set(fds); ret != 0) {
            return ret;
        }
        if (due()) {
            signal();
        }
        return 0;
    }
    // Readable while waiters are notified: for those that do not sleep on the whole set.
    [[nodiscard]] int notify_fd() BASE_EXCLUDES(mutex_);

    // From here on a waiter may sleep. Called before its final check of the stream: a thread that changes the stream
    // after that check sees this.
    void arm() { armed_.store(true); }
    [[nodiscard]] bool armed() const { return armed_.load(); }

    void notify() BASE_EXCLUDES(mutex_);
    // Clears the notification unless it is still `due`.
    template <class Due> void retract(const Due& due) BASE_EXCLUDES(mutex_) {
        const base::Guard lock(mutex_);
        if (signaled_ && !due()) {
            unsignal();
        }
    }

  private:
    int open_set(std::span<const int> fds) BASE_REQUIRES(mutex_);
    void signal() BASE_REQUIRES(mutex_);
    void unsignal() BASE_REQUIRES(mutex_);

    base::Mutex mutex_; // a leaf
    base::Descriptor set_ BASE_GUARDED_BY(mutex_);
    base::Descriptor event_ BASE_GUARDED_BY(mutex_);
    std::vector<int> added_ BASE_GUARDED_BY(mutex_);
    bool signaled_ BASE_GUARDED_BY(mutex_) = false;
    std::atomic<bool> armed_{false};
};

} // namespace rstream
