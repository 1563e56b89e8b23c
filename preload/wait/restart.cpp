// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Which handler has run cannot be asked afterwards. So signals whose handlers restart a call stay blocked in the wait,
// and a signalfd(2) ends it if one of them is pending: its handler runs as ppoll returns. EINTR is from one of the
// others then. If all handlers are of one kind, no signalfd is needed.
#include "preload/wait/restart.hpp"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>

#include <fcntl.h>

#include "preload/base/cancellation.hpp"
#include "preload/base/system.hpp"
#include "preload/calls/real.hpp"
#include "preload/rendezvous/descriptors.hpp"

namespace preload {

namespace {

struct Action { // of the kernel's: rt_sigaction(2)
    uintptr_t handler = 0;
    unsigned long flags = 0;
    uintptr_t restorer = 0;
    uint64_t mask = 0;
};

constexpr uint64_t bit_of(int number) { return uint64_t{1} << (number - 1); }

// Those of a fault, which a thread that waits has not caused, and libc's two for its own threads.
constexpr int first_of_libc = 32;
constexpr uint64_t not_waited_for = bit_of(SIGSEGV) | bit_of(SIGBUS) | bit_of(SIGILL) | bit_of(SIGFPE) |
                                    bit_of(SIGTRAP) | bit_of(SIGSYS) | bit_of(SIGABRT) | bit_of(first_of_libc) |
                                    bit_of(first_of_libc + 1);

struct Signals {
    uint64_t restarting = 0; // their handlers have SA_RESTART
    uint64_t ending = 0;     // the others with a handler
};

Signals handled_signals() {
    constexpr uintptr_t ignored = 1; // SIG_IGN; SIG_DFL is 0
    constexpr unsigned long restart = 0x10000000;
    constexpr int last = 64;
    Signals found;
    for (int number = 1; number <= last; ++number) {
        Action action;
        if ((bit_of(number) & not_waited_for) == 0 &&
            sys::call(SYS_rt_sigaction, number, nullptr, &action, sizeof(action.mask)) == 0 &&
            action.handler > ignored) {
            ((action.flags & restart) != 0 ? found.restarting : found.ending) |= bit_of(number);
        }
    }
    return found;
}

} // namespace

int poll_restarted(pollfd& one, int timeout_ms, void (*undo)(void*), void* argument) {
    const Signals signals = handled_signals();
    uint64_t blocked = 0;
    sys::call(SYS_rt_sigprocmask, SIG_BLOCK, nullptr, &blocked, sizeof(blocked));
    const uint64_t restarting = signals.restarting & ~blocked;
    const int pending = restarting != 0 && signals.ending != 0 ? descriptors::make([&] {
        return sys::call(SYS_signalfd4, -1, &restarting, sizeof(restarting), O_CLOEXEC | O_NONBLOCK);
    })
                                                               : -1;
    std::array<pollfd, 2> both{{{one.fd, one.events, 0}, {pending, POLLIN, 0}}};
    const nfds_t count = pending >= 0 ? 2 : 1; // not more than RLIMIT_NOFILE
    sigset_t mask{};
    blocked |= pending >= 0 ? restarting : 0;
    memcpy(&mask, &blocked, sizeof(blocked));
    const timespec timeout{timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
    const int n =
        cancellable([&] { return real::ppoll(both.data(), count, timeout_ms < 0 ? nullptr : &timeout, &mask); },
                    [&] {
                        descriptors::close(pending);
                        undo(argument);
                    });
    const int error = errno;
    descriptors::close(pending);
    one.revents = both[0].revents;
    const bool restarted = n < 0 && error == EINTR && signals.ending == 0 && handled_signals().ending == 0;
    errno = error;
    return n < 0 ? (restarted ? 0 : -1) : n > 0 && one.revents != 0 ? 1 : 0;
}

} // namespace preload
