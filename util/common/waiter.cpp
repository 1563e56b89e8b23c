// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/common/waiter.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include <sys/eventfd.h>
#include <unistd.h>

#include "base/eventfd.hpp"
#include "util/common/failure.hpp"

namespace util {

namespace {

int interrupt_fd = -1; // written by the signal handler, to wake poll()

void on_signal(int /*signal*/) {
    const int saved = errno;
    base::notify(interrupt_fd);
    errno = saved;
}

void handle(void (*handler)(int)) {
    struct sigaction action {};
    action.sa_handler = handler;
    // A second signal ends the program, even if it hangs. SA_RESTART: an interrupted write is restarted; poll() never
    // is.
    action.sa_flags = SA_RESETHAND | SA_RESTART;
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
}

int milliseconds_until(Clock::time_point deadline) {
    if (deadline == forever) {
        return -1;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, 60000)); // at most one minute for each poll
}

} // namespace

Waiter::Waiter() {
    interrupt_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (interrupt_fd < 0) {
        fail("eventfd: {}", strerror(errno));
    }
    handle(on_signal);
}

Waiter::~Waiter() {
    handle(SIG_DFL);
    close(interrupt_fd);
    interrupt_fd = -1;
}

Waiter::Outcome Waiter::wait(std::span<Waitable* const> things, Clock::time_point deadline) {
    descriptors_.clear();
    for (Waitable* thing : things) {
        if (!thing->may_sleep()) {
            // Check for an interruption even if there is always something to do.
            pollfd interrupt{interrupt_fd, POLLIN, 0};
            if (!interrupted_ && poll(&interrupt, 1, 0) > 0) {
                interrupted_ = true;
                return Outcome::interrupted;
            }
            return Outcome::ready;
        }
        thing->add_to(descriptors_);
    }
    if (!interrupted_) {
        descriptors_.push_back({interrupt_fd, POLLIN, 0});
    }
    for (;;) {
        const int ready = poll(descriptors_.data(), descriptors_.size(), milliseconds_until(deadline));
        if (ready < 0 && errno != EINTR) {
            fail("poll: {}", strerror(errno));
        }
        if (ready > 0) {
            break;
        }
        if (ready == 0 && Clock::now() >= deadline) {
            return Outcome::timed_out;
        }
    }
    if (!interrupted_ && descriptors_.back().revents != 0) {
        interrupted_ = true;
        return Outcome::interrupted;
    }
    return Outcome::ready;
}

} // namespace util
