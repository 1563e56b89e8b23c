// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Which handler has run cannot be asked afterwards. So those that end the wait stay blocked in it, and a signalfd(2)
// ends it if one of them is pending; any other handler that ends it has SA_RESTART.
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

// The signals whose handlers end a call with EINTR; `others`: there are handlers that do not.
uint64_t find_ending_ones(bool& others) {
    constexpr uintptr_t ignored = 1; // SIG_IGN; SIG_DFL is 0
    constexpr unsigned long restart = 0x10000000;
    constexpr int last = 64;
    uint64_t ending = 0;
    others = false;
    for (int number = 1; number <= last; ++number) {
        Action action;
        if ((bit_of(number) & not_waited_for) != 0 ||
            sys::call(SYS_rt_sigaction, number, nullptr, &action, sizeof(action.mask)) != 0 ||
            action.handler <= ignored) {
            continue;
        }
        if ((action.flags & restart) == 0) {
            ending |= bit_of(number);
        } else {
            others = true;
        }
    }
    return ending;
}

} // namespace

int poll_restarted(pollfd& one, void (*undo)(void*), void* argument) {
    bool others = false;
    uint64_t ending = find_ending_ones(others);
    uint64_t blocked = 0;
    sys::call(SYS_rt_sigprocmask, SIG_BLOCK, nullptr, &blocked, sizeof(blocked));
    ending &= ~blocked;
    const int signals = ending != 0 && others ? descriptors::make([&] {
        return sys::call(SYS_signalfd4, -1, &ending, sizeof(ending), O_CLOEXEC | O_NONBLOCK);
    })
                                              : -1;
    std::array<pollfd, 2> both{{{one.fd, one.events, 0}, {signals, POLLIN, 0}}};
    sigset_t mask{};
    blocked |= signals >= 0 ? ending : 0;
    memcpy(&mask, &blocked, sizeof(blocked));
    const int n = cancellable([&] { return real::ppoll(both.data(), both.size(), nullptr, &mask); },
                              [&] {
                                  descriptors::close(signals);
                                  undo(argument);
                              });
    const int error = errno;
    descriptors::close(signals);
    one.revents = both[0].revents;
    if (n > 0 && one.revents == 0) { // its handler has run when ppoll returned
        errno = EINTR;
        return -1;
    }
    if (n < 0 && error == EINTR && (signals >= 0 || ending == 0)) {
        return 0;
    }
    errno = error;
    return n > 0 ? 1 : n;
}

} // namespace preload
