// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// How a change of a socket that no descriptor of the provider's tells of reaches those who wait for it: a connection
// that was made or accepted, an end that another thread made. Data is not announced here.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <vector>

#include <poll.h>

#include "rsockets/mutex.hpp"

namespace rsockets {

// Someone who hears a bell. Called with the bell locked: it takes a note and returns.
class Ear {
  public:
    virtual void hear() = 0;
    // The socket's descriptor is about to be closed: nothing may be left that names it, since its number is soon
    // another's.
    virtual void let_go() {}

    virtual ~Ear() = default;
};

class Bell {
  public:
    void ring();
    void let_go();
    void add(Ear* ear);
    void remove(Ear* ear);

  private:
    Mutex mutex_;
    std::vector<Ear*> ears_ RSOCKET_GUARDED_BY(mutex_);
    std::atomic<size_t> count_{0};
};

// A thread that is about to sleep. It hears the bells that it is put on from then on; a ring is not lost between the
// last look at a socket and the sleep. The descriptor that this takes is the thread's, not the sleeper's.
class Sleeper final : public Ear {
  public:
    Sleeper();
    Sleeper(const Sleeper&) = delete;
    Sleeper& operator=(const Sleeper&) = delete;
    ~Sleeper() override;

    // In a child: the thread's descriptor is none that the parent's thread sleeps on.
    static void after_fork();

    void listen_to(Bell& bell);
    void hear() override;

    [[nodiscard]] int fd() const { return fd_; } // readable once a bell was heard; -1 if there are none left
    void rest();                                 // forgets what was heard

  private:
    int fd_;
    std::atomic<bool> heard_{false};
    std::vector<Bell*> bells_;
};

// When to stop waiting, on the monotonic clock.
class Deadline {
  public:
    using Clock = std::chrono::steady_clock;

    static Deadline never() { return Deadline(); }
    static Deadline in(std::chrono::nanoseconds time);
    static Deadline in(const timespec& time); // a valid one; what lasts thirty years and more is for ever

    [[nodiscard]] bool passed() const { return at_ && Clock::now() >= *at_; }
    [[nodiscard]] bool limited() const { return at_.has_value(); }
    // For ppoll: null if there is no limit. At most `most`, if given.
    const timespec* left(timespec& room, std::optional<std::chrono::nanoseconds> most = {}) const;

  private:
    std::optional<Clock::time_point> at_;
};

// A sleep was ended by a signal. True if a call that the kernel restarts after handlers with SA_RESTART is to go on.
bool restarts_after_signal();

} // namespace rsockets
