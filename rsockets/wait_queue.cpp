// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/wait_queue.hpp"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <iterator>

#include <dlfcn.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/descriptor.hpp"
#include "base/eventfd.hpp"
#include "rsockets/call.hpp"

namespace rsockets {

void WaitQueue::notify_others(const Waiter* but) {
    if (count_.load() == 0) {
        return;
    }
    const Guard lock(mutex_);
    for (Waiter* waiter : waiters_) {
        if (waiter != but) {
            waiter->notify();
        }
    }
}

void WaitQueue::let_go() {
    const Guard lock(mutex_);
    for (Waiter* waiter : waiters_) {
        waiter->let_go();
    }
}

void WaitQueue::add(Waiter* waiter) {
    const Guard lock(mutex_);
    waiters_.push_back(waiter);
    count_.store(waiters_.size());
}

void WaitQueue::remove(Waiter* waiter) {
    const Guard lock(mutex_);
    if (const auto found = std::find(waiters_.begin(), waiters_.end(), waiter); found != waiters_.end()) {
        waiters_.erase(found);
        waiter->let_go(); // with the queue locked: a close of the descriptor comes before or after
    }
    count_.store(waiters_.size());
}

namespace {

// Created when a thread sleeps for the first time. A signal handler that sleeps on top of a Sleeper creates another.
struct ThreadFd {
    base::Descriptor fd;
    bool taken = false;
};
thread_local ThreadFd thread_fd;

} // namespace

void Sleeper::after_fork() {
    const int fd = thread_fd.fd.release(); // the parent's thread sleeps on the same one
    if (!thread_fd.taken && fd >= 0) {     // else an interrupted Sleeper owns it, and closes it
        ::close(fd);
    }
    thread_fd.taken = false;
}

Sleeper::Sleeper() {
    if (thread_fd.taken) {
        fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        return;
    }
    thread_fd.taken = true;
    if (!thread_fd.fd.open()) {
        thread_fd.fd = base::Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    }
    fd_ = thread_fd.fd.get();
}

Sleeper::~Sleeper() {
    for (WaitQueue* wait_queue : wait_queues_) {
        wait_queue->remove(this);
    }
    if (fd_ == thread_fd.fd.get()) {
        clear();
        thread_fd.taken = false;
    } else if (fd_ >= 0) {
        ::close(fd_);
    }
}

void Sleeper::wait_on(WaitQueue& wait_queue) {
    wait_queues_.push_back(&wait_queue); // first: what is not there is removed without harm
    wait_queue.add(this);
}

void Sleeper::notify() {
    if (!notified_.exchange(true)) {
        base::notify(fd_);
    }
}

void Sleeper::clear() {
    uint64_t count = 0;
    // Before the flag: a notification in between causes one poll too many, not one too few. A thread that has set the
    // flag and not written yet will write: then the flag stays, or nobody would read that.
    if (notified_.load() && ::read(fd_, &count, sizeof(count)) == static_cast<ssize_t>(sizeof(count))) {
        notified_.store(false);
    }
}

Deadline Deadline::in(const timespec& time) {
    constexpr time_t longest = 1000000000; // seconds: far below the range of the clock
    return time.tv_sec > longest ? never()
                                 : in(std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec));
}

Deadline Deadline::in(std::chrono::nanoseconds time) {
    Deadline deadline;
    const auto now = Clock::now();
    const auto longest = Clock::time_point::max() - now;
    if (time < longest) {
        deadline.at_ = now + time;
    }
    return deadline;
}

timespec Deadline::left() const {
    timespec storage{};
    const timespec* const limited = left(storage);
    return limited != nullptr ? *limited : timespec{};
}

const timespec* Deadline::left(timespec& storage, std::optional<std::chrono::nanoseconds> most) const {
    if (!at_ && !most) {
        return nullptr;
    }
    std::chrono::nanoseconds time = most.value_or(std::chrono::nanoseconds::max());
    if (at_) {
        time = std::clamp<std::chrono::nanoseconds>(*at_ - Clock::now(), std::chrono::nanoseconds(0), time);
    }
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
    storage.tv_sec = seconds.count();
    storage.tv_nsec = (time - seconds).count();
    return &storage;
}

namespace {

// Debian's libfabric is linked to a library of psm that installs its own handlers for SIGINT and SIGTERM.
bool of_psm(const void* handler) {
    Dl_info info{};
    return dladdr(handler, &info) != 0 && info.dli_fname != nullptr &&
           strstr(info.dli_fname, "libinfinipath") != nullptr;
}

} // namespace

// Only the kernel knows which handler ran. If all handlers of the program have SA_RESTART, the call goes on; otherwise
// it fails, since a program that installs a handler without it expects that. Handlers of program errors do not count.
bool restarts_after_signal() {
    for (int number = 1; number < NSIG; ++number) {
        struct sigaction action {};
        if (of_a_mistake(number) || sigaction(number, nullptr, &action) != 0 || (action.sa_flags & SA_RESTART) != 0 ||
            action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) {
            continue;
        }
        if (!of_psm(reinterpret_cast<const void*>(action.sa_handler))) {
            return false;
        }
    }
    return true;
}

} // namespace rsockets
