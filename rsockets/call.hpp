// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A call of the program, from entry to return, with regard to signals, cancellation and exit(3).
//
// A thread is outside, inside a call, or asleep in one. Inside, it may hold locks of ours and of libfabric. So it is
// not cancelled there, calls of a signal handler that interrupts it fail with -EAGAIN, and an exiting process waits
// until it has left: libfabric tears down its providers at exit. Asleep, it holds no lock: it can be cancelled, a
// handler may make any call, and exit does not wait for it. A call that is about to sleep blocks signals during its
// last poll, so that none is handled between that and the sleep, which the signal has to end.
#pragma once

#include <cerrno>
#include <chrono>
#include <csignal>
#include <ctime>

#include <poll.h>

namespace rsockets {

class Call {
  public:
    enum class Kind { plain, cancellation_point };

    // A cancellation point acts on a pending request.
    explicit Call(Kind kind = Kind::plain);
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    ~Call() noexcept(false); // a thread with asynchronous cancellation may be cancelled here

    // 0, or the error to return at once: -EAGAIN if the thread is inside another call, -ESHUTDOWN if the process exits.
    [[nodiscard]] int refusal() const { return refusal_; }

    // The process exits: threads inside calls must leave them.
    [[nodiscard]] static bool exiting();
    // exit(3) runs in a signal handler that interrupted a call of this thread.
    [[nodiscard]] static bool interrupted();
    // For the exiting thread: from now on, no call begins, or goes on after a sleep.
    static void begin_exit();
    // Waits until no other thread is inside; false after a timeout.
    static bool others_are_out();
    // Lets parked calls of other threads return their errors after a delay.
    static void end_exit();
    // In a child, where there are no other threads.
    static void after_fork();

  private:
    friend class HeldSignals;

    int refusal_ = 0;
    int before_ = 0;       // the previous place of the thread
    int cancel_state_ = 0; // its previous cancellation state
};

// Blocks signals, except those of program errors, for its lifetime: handlers run within `sleep` only.
class HeldSignals {
  public:
    HeldSignals();
    HeldSignals(const HeldSignals&) = delete;
    HeldSignals& operator=(const HeldSignals&) = delete;
    ~HeldSignals();

    // ppoll(2) with the caller's mask, or another one: the number of descriptors, or -errno. No lock may be held, since
    // the thread may be cancelled here.
    int sleep(pollfd* fds, nfds_t count, const timespec* time, const sigset_t* mask = nullptr) const;
    // The same for a thread that may not be cancelled, within a close: its destructors do not unwind.
    int sleep_uncancelled(pollfd* fds, nfds_t count, const timespec* time) const;
    // A signal is pending that the program's mask does not block.
    [[nodiscard]] bool pending() const;

  private:
    sigset_t before_{};
};

// The same where no poll precedes it: no signals are blocked.
int sleep_at_once(pollfd* fds, nfds_t count, const timespec* time, const sigset_t* mask);

// Busy polling, without a sleep in between. A signal or an exit ends it.
class Spin {
  public:
    Spin(const HeldSignals& signals, std::chrono::microseconds time)
        : signals_(signals), end_(Clock::now() + time), next_(Clock::now() + poll_interval) {}
    bool goes_on();

  private:
    using Clock = std::chrono::steady_clock;
    static constexpr std::chrono::microseconds poll_interval{50}; // checking for signals takes a system call
    const HeldSignals& signals_;
    const Clock::time_point end_;
    Clock::time_point next_;
};

// A signal that a thread raises by a program error.
bool of_a_mistake(int number);

} // namespace rsockets
