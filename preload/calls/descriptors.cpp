// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Descriptors: closing, duplicating, flags.
#include "preload/base/lowest_fd.hpp"
#include "preload/calls/export.hpp"
#include "preload/calls/real.hpp"
#include "preload/connection/io.hpp"
#include "preload/connection/lifecycle.hpp"
#include "preload/connection/made_sockets.hpp"
#include "preload/connection/outside_use.hpp"
#include "preload/connection/stream.hpp"

#include <climits>
#include <cstdarg>

#include <linux/sockios.h>

#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC 4
#endif

using namespace preload;

namespace {

// A close that lingers takes the number away at once in the kernel, and here at its end.
int close_in_kernel(int fd, bool too_late) {
    if (too_late) {
        errno = EBADF;
        return -1;
    }
    return real::close(fd);
}

int close_one(int fd) {
    if (table::find(fd) == 0) [[likely]] {
        const lowest_fd::ProgramCall call_of_program(lifecycle::in_vfork_child);
        if (table::find(fd) == 0) [[likely]] {
            return real::close(fd);
        }
    }
    if (table::find(fd) == table::internal) { // also in a child of vfork, which uses them until it executes a program
        errno = EBADF;                        // the program has no such fd
        return -1;
    }
    pthread_testcancel(); // the kernel's call comes too late for it
    return lifecycle::close(fd, [&](bool too_late) { return close_in_kernel(fd, too_late); });
}

// Calls range(first, last) for each range between the library's own fds.
template <class Range> int for_ranges(unsigned first, unsigned last, Range&& range) {
    unsigned begin = first;
    int result = 0;
    table::for_each([&](int fd, uintptr_t what) {
        const auto number = static_cast<unsigned>(fd);
        if (what == table::internal && number >= begin && number <= last && result == 0) {
            result = number > begin ? range(begin, number - 1) : 0;
            begin = number + 1;
        }
    });
    return result == 0 && begin <= last && begin >= first ? range(begin, last) : result;
}

int close_many(unsigned first, unsigned last, int flags) {
    const auto close = [&](unsigned from, unsigned to) { return real::close_range(from, to, flags); };
    if (first > last) {
        return close(first, last);
    }
    if (lifecycle::in_vfork_child()) {
        return for_ranges(first, last, close);
    }
    if ((flags & CLOSE_RANGE_CLOEXEC) == 0) {
        table::for_each([&](int fd, uintptr_t what) {
            if (static_cast<unsigned>(fd) >= first && static_cast<unsigned>(fd) <= last && what != table::internal) {
                lifecycle::close(fd, [&](bool too_late) { return close_in_kernel(fd, too_late); });
            }
        });
    }
    const lowest_fd::ProgramCall call_of_program(lifecycle::in_vfork_child);
    return for_ranges(first, last, close);
}

// make() returns the lowest fd that is free, even while the library opens its own.
template <class Make> int with_least_number(Make&& make) {
    const lowest_fd::ProgramCall call_of_program(lifecycle::in_vfork_child);
    return make();
}

// For an fd that is not in the table: perhaps a socket that is not connected yet.
int noted(int fd, int made) {
    if (!lifecycle::in_vfork_child()) {
        made_sockets::note(made, made_sockets::is_tcp(fd));
        made_sockets::note_duplicated(fd, made);
    }
    return made;
}

template <class Real> int duplicate_onto(int fd, int onto, Real&& make) {
    outside_use::hand_over_duplicated(fd);
    const lowest_fd::ProgramCall call_of_program(lifecycle::in_vfork_child);
    if (fd == onto || (table::find(onto) == 0 && table::find(fd) == 0)) {
        return noted(fd, make());
    }
    if (table::find(onto) == table::internal && !lifecycle::in_vfork_child()) {
        errno = EBADF; // beyond the numbers that the program may have
        return -1;
    }
    if (sys::call(SYS_fcntl, fd, F_GETFD, 0) < 0 || table::find(onto) == 0) {
        const int made = make();
        lifecycle::duplicate(fd, made);
        return made;
    }
    const int made = lifecycle::close(onto, [&](bool) { return make(); });
    lifecycle::duplicate(fd, made);
    return made;
}

int control(int fd, int command, unsigned long argument) {
    Connection* c = table::connection(fd);
    if (c == nullptr && table::find(fd) == 0) [[likely]] {
        const auto call = [&] { return real::fcntl(fd, command, argument); };
        const bool duplicates = command == F_DUPFD || command == F_DUPFD_CLOEXEC;
        const int result = duplicates ? with_least_number(call) : call();
        return duplicates ? noted(fd, result) : result;
    }
    if (command == F_DUPFD || command == F_DUPFD_CLOEXEC) {
        outside_use::hand_over_duplicated(fd);
        const int made = with_least_number([&] { return real::fcntl(fd, command, argument); });
        lifecycle::duplicate(fd, made);
        return made;
    }
    const int result = real::fcntl(fd, command, argument);
    if (result >= 0 && c != nullptr) {
        if (command == F_SETFL) {
            c->state.load()->nonblocking = (argument & O_NONBLOCK) != 0;
        }
        if ((command == F_SETFL && (argument & O_ASYNC) != 0) || command == F_SETSIG) {
            io::pin_for(*c, fd, Reason::asynchronous);
        }
    }
    return result;
}

} // namespace

PRELOAD_EXPORT int close(int fd) { return close_one(fd); }
PRELOAD_ALIAS(__close, close);

PRELOAD_EXPORT int close_range(unsigned first, unsigned last, int flags) noexcept {
    return close_many(first, last, flags);
}

PRELOAD_EXPORT void closefrom(int first) noexcept {
    close_many(first > 0 ? static_cast<unsigned>(first) : 0, UINT_MAX, 0);
}

PRELOAD_EXPORT int dup(int fd) noexcept {
    outside_use::hand_over_duplicated(fd);
    const int made = with_least_number([&] { return real::dup(fd); });
    if (table::find(fd) != 0 || (made >= 0 && table::find(made) != 0)) [[unlikely]] {
        lifecycle::duplicate(fd, made);
        return made;
    }
    return noted(fd, made);
}

PRELOAD_EXPORT int dup2(int fd, int onto) noexcept {
    return duplicate_onto(fd, onto, [&] { return real::dup2(fd, onto); });
}
PRELOAD_ALIAS(__dup2, dup2);

PRELOAD_EXPORT int dup3(int fd, int onto, int flags) noexcept {
    if (fd == onto || (flags & ~O_CLOEXEC) != 0) {
        return real::dup3(fd, onto, flags); // EINVAL
    }
    return duplicate_onto(fd, onto, [&] { return real::dup3(fd, onto, flags); });
}

// NOLINTBEGIN(clang-analyzer-valist.Uninitialized): the analyzer does not follow va_start here
#define ARGUMENT_OF(type, last)                                                                                        \
    va_list arguments;                                                                                                 \
    va_start(arguments, last);                                                                                         \
    const auto argument = va_arg(arguments, type);                                                                     \
    va_end(arguments)

PRELOAD_EXPORT int fcntl(int fd, int command, ...) {
    ARGUMENT_OF(unsigned long, command);
    return control(fd, command, argument);
}
PRELOAD_EXPORT int fcntl64(int fd, int command, ...) {
    ARGUMENT_OF(unsigned long, command);
    return control(fd, command, argument);
}
PRELOAD_ALIAS(__fcntl, fcntl);

PRELOAD_EXPORT int ioctl(int fd, unsigned long request, ...) noexcept {
    ARGUMENT_OF(void*, request);
    const auto kernel = [&] { return real::ioctl(fd, request, argument); };
    Connection* c = table::connection(fd);
    if (c == nullptr) [[likely]] {
        return kernel();
    }
    ConnectionState& s = *c->state.load();
    if (request == FIONREAD && (s.gate.load() & gate::careful) != 0 && argument != nullptr) {
        const long there = stream::unread(*c, fd);
        if (there >= 0) {
            *static_cast<int*>(argument) = static_cast<int>(there);
            return 0;
        }
        return kernel();
    }
    const int result = kernel();
    if (result == 0 && request == SIOCOUTQ && argument != nullptr && (s.out_epoch.load() & 1) != 0 &&
        (s.gate.load() & gate::careful) != 0) {
        *static_cast<int*>(argument) = 0; // the kernel's queue has only frames
    }
    if (result == 0 && request == FIONBIO && argument != nullptr) {
        s.nonblocking = *static_cast<const int*>(argument) != 0;
    } else if (result == 0 && request == FIOASYNC && argument != nullptr && *static_cast<const int*>(argument) != 0) {
        io::pin_for(*c, fd, Reason::asynchronous);
    }
    return result;
}
// NOLINTEND(clang-analyzer-valist.Uninitialized)
