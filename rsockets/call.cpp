// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/call.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <iterator>

#include <pthread.h>
#include <unistd.h>

#include "rsockets/log.hpp"
#include "rsockets/pause.hpp"
#include "rsockets/stats.hpp"

namespace rsockets {

namespace {

using Clock = std::chrono::steady_clock;

// How long an exiting process waits for threads inside calls; one that is inside for longer is blocked in libfabric.
constexpr auto longest_inside = std::chrono::seconds(1);
// How long calls of other threads stay parked after the exit handler: normally the process is gone by then, and they
// return no error. If it still exists, a destructor may wait for them.
constexpr auto longest_park = std::chrono::seconds(1);
constexpr timespec park_turn{0, 10000000};

// resting: asleep within a close, but counted as inside: what it closes must outlast its sleep.
enum Place : int { outside, inside, asleep, resting };

struct Thread {
    int place = outside;
    int cancel_state = PTHREAD_CANCEL_ENABLE; // the program's, while the thread is inside
    bool exits = false;
    unsigned stripe = 0; // of `threads_inside`; 0: none yet
};

// The TLS model that a signal handler can use: others may allocate at the first use.
__attribute__((tls_model("initial-exec"))) constinit thread_local Thread self;

// The number of threads inside, in stripes of a cache line each: each call changes one twice.
struct alignas(64) Stripe {
    std::atomic<int> count{0};
};
constexpr unsigned stripe_count = 64;
constinit std::array<Stripe, stripe_count> threads_inside;
constinit std::atomic<unsigned> next_stripe{0};

constinit std::atomic<bool> exit_begun{false};
constinit std::atomic<int64_t> exit_ended{0}; // in ticks of `Clock`; 0: not yet

// The stack that calls and libfabric's tcp core need; see the man page.
constexpr size_t least_stack = size_t{24} << 10;

// At a thread's first call: a stack that is too small may end in SIGSEGV.
void check_stack() {
    pthread_attr_t attributes;
    if (!logs(Level::warn) || gettid() == getpid() || pthread_getattr_np(pthread_self(), &attributes) != 0) {
        return;
    }
    size_t size = 0;
    if (pthread_attr_getstacksize(&attributes, &size) == 0 && size < least_stack) {
        log(Level::warn, "a thread has %zu bytes of stack: over tcp, libfabric needs %zu (pthread_attr_setstacksize)",
            size, least_stack);
    }
    pthread_attr_destroy(&attributes);
}

std::atomic<int>& count_of_this_thread() {
    if (self.stripe == 0) {
        self.stripe = 1 + next_stripe.fetch_add(1, std::memory_order_relaxed) % stripe_count;
    }
    return threads_inside[self.stripe - 1].count;
}

// Counts the thread before it reads `exit_begun`, which the exiting thread sets before it reads the counts: one of them
// sees the other, since all of these are sequentially consistent.
void enter() {
    self.place = inside;
    count_of_this_thread().fetch_add(1);
}

void leave(int to) {
    count_of_this_thread().fetch_sub(1);
    self.place = to;
}

bool must_park() { return exit_begun.load() && !self.exits; }

// Waits until the process is gone, or something may wait for this thread, which is not inside meanwhile.
void park() {
    for (;;) {
        const int64_t ended = exit_ended.load();
        if (ended != 0 && Clock::now() >= Clock::time_point(Clock::duration(ended)) + longest_park) {
            return;
        }
        pause_for(park_turn);
    }
}

} // namespace

Call::Call(Kind kind) {
    if (kind == Kind::cancellation_point && self.place != inside) {
        pthread_testcancel();
    }
    if (self.stripe == 0) {
        check_stack();
    }
    before_ = self.place;
    if (before_ == inside) {
        refusal_ = -EAGAIN;
        return;
    }
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state_);
    enter();
    self.cancel_state = cancel_state_;
    if (exit_begun.load()) {
        if (must_park()) {
            leave(asleep);
            park();
            enter();
        }
        refusal_ = -ESHUTDOWN;
    }
}

Call::~Call() noexcept(false) {
    if (before_ != inside) {
        const int state = cancel_state_;
        leave(before_);
        pthread_setcancelstate(state, nullptr);
    }
}

bool Call::exiting() { return exit_begun.load(std::memory_order_relaxed); }

bool Call::interrupted() { return self.place == inside; }

void Call::begin_exit() {
    self.exits = true;
    exit_begun.store(true);
}

bool Call::others_are_out() {
    const auto limit = Clock::now() + longest_inside;
    for (;;) {
        int count = self.place == inside || self.place == resting ? -1 : 0;
        for (const Stripe& stripe : threads_inside) {
            count += stripe.count.load();
        }
        if (count <= 0) {
            return true;
        }
        if (Clock::now() >= limit) {
            return false;
        }
        constexpr timespec turn{0, 100000};
        pause_for(turn);
    }
}

void Call::end_exit() { exit_ended.store(Clock::now().time_since_epoch().count()); }

void Call::after_fork() {
    for (Stripe& stripe : threads_inside) {
        stripe.count.store(0);
    }
    if (self.place == inside || self.place == resting) {
        count_of_this_thread().store(1);
    }
    exit_begun.store(false); // the parent's: its exit handlers may fork a child to work in
    self.exits = false;
}

bool of_a_mistake(int number) {
    constexpr int mistakes[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS, SIGABRT};
    return std::find(std::begin(mistakes), std::end(mistakes), number) != std::end(mistakes);
}

HeldSignals::HeldSignals() {
    static const sigset_t held = [] {
        sigset_t all;
        sigfillset(&all);
        for (int number = 1; number < NSIG; ++number) {
            if (of_a_mistake(number)) {
                sigdelset(&all, number);
            }
        }
        return all;
    }();
    pthread_sigmask(SIG_BLOCK, &held, &before_);
}

HeldSignals::~HeldSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

namespace {

// Scope of a sleep. A cancelled thread leaves it by unwinding.
class Asleep {
  public:
    Asleep() {
        state_ = self.cancel_state;
        leave(asleep);
        pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type_);
        pthread_setcancelstate(state_, nullptr);
    }
    Asleep(const Asleep&) = delete;
    Asleep& operator=(const Asleep&) = delete;
    ~Asleep() {
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
        pthread_setcanceltype(type_, nullptr);
        enter();
        self.cancel_state = state_; // a handler's calls may have changed it
        if (must_park()) {
            leave(asleep);
            park();
            enter();
        }
    }

  private:
    int state_ = 0;
    int type_ = 0;
};

// Counts a sleep, also of a thread that is cancelled in it. A poll that does not wait is none.
class Slept {
  public:
    explicit Slept(bool waits) : began_(waits ? base::stats::clock_ns(CLOCK_MONOTONIC) : 0) {}
    Slept(const Slept&) = delete;
    Slept& operator=(const Slept&) = delete;
    ~Slept() {
        if (began_ != 0) {
            Counters::thread_slept(base::stats::clock_ns(CLOCK_MONOTONIC) - began_);
        }
    }

  private:
    const uint64_t began_;
};

} // namespace

int HeldSignals::sleep(pollfd* fds, nfds_t count, const timespec* time, const sigset_t* mask) const {
    return sleep_at_once(fds, count, time, mask != nullptr ? mask : &before_);
}

int HeldSignals::sleep_uncancelled(pollfd* fds, nfds_t count, const timespec* time) const {
    const int place = self.place;
    self.place = place == inside ? resting : place; // handlers may call
    const int ret = ::ppoll(fds, count, time, &before_);
    const int error = errno;
    self.place = place;
    return ret < 0 ? -error : ret;
}

bool HeldSignals::pending() const {
    sigset_t all;
    sigemptyset(&all);
    sigpending(&all);
    for (int number = 1; number < NSIG; ++number) {
        if (sigismember(&all, number) == 1 && sigismember(&before_, number) == 0) {
            return true;
        }
    }
    return false;
}

bool Spin::goes_on() {
    const auto now = Clock::now();
    if (now >= end_ || Call::exiting()) {
        return false;
    }
    if (now >= next_) {
        next_ = now + poll_interval;
        return !signals_.pending();
    }
    return true;
}

int sleep_at_once(pollfd* fds, nfds_t count, const timespec* time, const sigset_t* mask) {
    int ret = 0;
    {
        const Slept counted(time == nullptr || time->tv_sec != 0 || time->tv_nsec != 0);
        const Asleep asleep;
        ret = ::ppoll(fds, count, time, mask);
        ret = ret < 0 ? -errno : ret;
    }
    return Call::exiting() && !self.exits ? -ESHUTDOWN : ret;
}

} // namespace rsockets
