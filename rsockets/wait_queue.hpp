// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Notification of waiters about changes of a socket that no descriptor of the provider signals: a connection is
// established or accepted, another thread ends a direction. Data is not notified here.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <vector>

#include <poll.h>

#include "rsockets/mutex.hpp"

namespace rsockets {

// A waiter. Called with the wait queue locked: it records the notification and returns.
class Waiter {
  public:
    virtual void notify() = 0;
    // The socket's provider descriptor is about to be closed: the waiter drops it, since its number will be reused.
    virtual void let_go() {}

    virtual ~Waiter() = default;
};

// The wait queue of a socket.
class WaitQueue {
  public:
    void notify_all() { notify_others(nullptr); }
    void notify_others(const Waiter* but);
    [[nodiscard]] bool has_others(const Waiter* but) const { return count_.load() > (but != nullptr ? 1 : 0); }
    void let_go();
    void add(Waiter* waiter);
    void remove(Waiter* waiter);

  private:
    Mutex mutex_;
    std::vector<Waiter*> waiters_ RSOCKET_GUARDED_BY(mutex_);
    std::atomic<size_t> count_{0};
};

// A thread that is about to sleep. The wait queues that it is added to notify it from then on: no notification is lost
// between the last poll of a socket and the sleep. The eventfd belongs to the thread and is reused.
class Sleeper final : public Waiter {
  public:
    Sleeper();
    Sleeper(const Sleeper&) = delete;
    Sleeper& operator=(const Sleeper&) = delete;
    ~Sleeper() override;

    // In a child: drops the eventfd of the thread, which the parent's thread sleeps on.
    static void after_fork();

    void wait_on(WaitQueue& wait_queue);
    void notify() override;

    [[nodiscard]] int fd() const { return fd_; } // readable once notified; -1: out of descriptors
    void clear();                                // clears the notification

  private:
    int fd_;
    std::atomic<bool> notified_{false};
    std::vector<WaitQueue*> wait_queues_;
};

// When to stop waiting, on the monotonic clock.
class Deadline {
  public:
    using Clock = std::chrono::steady_clock;

    static Deadline never() { return Deadline(); }
    static Deadline in(std::chrono::nanoseconds time);
    static Deadline in(const timespec& time); // a valid one; thirty years and more mean no limit

    [[nodiscard]] bool passed() const { return at_ && Clock::now() >= *at_; }
    [[nodiscard]] bool limited() const { return at_.has_value(); }
    // The time left; of a deadline that is limited.
    [[nodiscard]] timespec left() const;
    // The same for ppoll: null if there is no limit. At most `most`, if given.
    const timespec* left(timespec& storage, std::optional<std::chrono::nanoseconds> most = {}) const;

  private:
    std::optional<Clock::time_point> at_;
};

// After a signal has ended a sleep: true if the call goes on, as the kernel restarts calls after SA_RESTART handlers.
bool restarts_after_signal();

} // namespace rsockets
