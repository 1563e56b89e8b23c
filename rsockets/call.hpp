// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A call of the program's, from its entry to its return, as signals, cancellation and exit(3) see it.
//
// A thread is outside, inside a call, or asleep in one. Inside, it may hold locks of ours and of libfabric's. So it is
// not cancelled there, a signal handler that interrupts it is refused with -EAGAIN, and a process that exits waits
// until it is out: libfabric takes its providers apart at exit. Asleep it holds none. There it can be cancelled, a
// handler may call anything, and an exit does not wait for it. A call that is about to sleep holds signals back while
// it looks for the last time, so that none is handled between that and the sleep, which it would have to end.
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

    // A cancellation point acts on a request that is pending.
    explicit Call(Kind kind = Kind::plain);
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    ~Call() noexcept(false); // a thread with asynchronous cancellation may end here

    // 0, or what the call is to return without touching anything: -EAGAIN if the thread is inside another, -ESHUTDOWN
    // if the process exits.
    [[nodiscard]] int refusal() const { return refusal_; }

    // The process exits: whoever is inside is to come out.
    [[nodiscard]] static bool exiting();
    // This thread, in exit(3), is inside a call that it interrupted.
    [[nodiscard]] static bool interrupted();
    // For the thread that exits: no call begins from now on, or goes on after a sleep.
    static void begin_exit();
    // Waits until no other thread is inside; false if one stayed too long.
    static bool others_are_out();
    // Calls of other threads may return their errors soon.
    static void end_exit();
    // In a child, where there are no other threads.
    static void after_fork();

  private:
    friend class HeldSignals;

    int refusal_ = 0;
    int before_ = 0;       // where the thread was
    int cancel_state_ = 0; // likewise
};

// Holds signals back, but for those of mistakes, until the end of its life: a handler runs within `sleep` only.
class HeldSignals {
  public:
    HeldSignals();
    HeldSignals(const HeldSignals&) = delete;
    HeldSignals& operator=(const HeldSignals&) = delete;
    ~HeldSignals();

    // ppoll(2) with the caller's mask, or another one: the number of descriptors, or -errno. No lock may be held, and a
    // thread may be cancelled here.
    int sleep(pollfd* fds, nfds_t count, const timespec* time, const sigset_t* mask = nullptr) const;
    // One has come that the program's mask lets in.
    [[nodiscard]] bool pending() const;

  private:
    sigset_t before_{};
};

// The same where there was no look before: nothing is held back.
int sleep_at_once(pollfd* fds, nfds_t count, const timespec* time, const sigset_t* mask);

// The time in which a call looks without a sleep in between. A signal or an exit ends it.
class Spin {
  public:
    Spin(const HeldSignals& signals, std::chrono::microseconds time)
        : signals_(signals), end_(Clock::now() + time), next_(Clock::now() + look_each) {}
    bool goes_on();

  private:
    using Clock = std::chrono::steady_clock;
    static constexpr std::chrono::microseconds look_each{50}; // a look at signals takes a system call
    const HeldSignals& signals_;
    const Clock::time_point end_;
    Clock::time_point next_;
};

// A signal that a thread sends itself by a mistake.
bool of_a_mistake(int number);

} // namespace rsockets
