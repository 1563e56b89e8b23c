// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Numbers: closing them, giving others to the same file, and their flags.
#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdarg>

#include <linux/close_range.h>
#include <netinet/in.h>

#include "rsockets/preload/explain.hpp"
#include "rsockets/preload/lock.hpp"
#include "rsockets/preload/log.hpp"
#include "rsockets/preload/numbers.hpp"
#include "rsockets/preload/route.hpp"

namespace preload {

namespace {

int close_known(int fd, const void* caller) {
    if (caller::is_internal(caller)) { // runs in no child of vfork; asking costs a system call
        if (table::kind(fd) == Kind::internal) {
            table::remove(fd);
        }
        return real::close(fd);
    }
    if (in_vfork_child()) {
        return real::close(fd);
    }
    const Kind kind = table::kind(fd);
    if (kind == Kind::internal) { // a program that closes all numbers does not mean those that it cannot know of
        errno = EBADF;
        return -1;
    }
    explain::closing(fd);
    table::remove(fd);
    if (kind <= Kind::last_plain) {
        return real::close(fd);
    }
    const caller::Inside inside;
    return Carrier::loaded().close(fd);
}

int close_on(int fd, const void* caller) {
    if (table::kind(fd) == Kind::none) [[likely]] {
        return real::close(fd);
    }
    return close_known(fd, caller);
}

int close_all(unsigned first, unsigned last, unsigned flags, const void* caller) {
    // Flags of descriptors are the kernel's business, whatever the numbers stand for.
    if (first > last || (flags & CLOSE_RANGE_CLOEXEC) != 0 || in_vfork_child() || caller::is_internal(caller)) {
        return real::close_range(first, last, static_cast<int>(flags));
    }
    unsigned next = first;
    int ret = 0;
    table::for_each([&](int fd, Kind kind, Entry*) {
        const auto number = static_cast<unsigned>(fd);
        if (number < first || number > last || ret != 0) {
            return;
        }
        if (kind == Kind::internal) {
            ret = number > next ? real::close_range(next, number - 1, static_cast<int>(flags)) : 0;
            next = number + 1;
        } else {
            (void)close_known(fd, caller);
        }
    });
    return ret == 0 && next <= last ? real::close_range(next, last, static_cast<int>(flags)) : ret;
}

// The kernel has made `made` a duplicate of `fd`: what the table and the library know of the one is true of the other.
int shared(int fd, int made, const void* caller) {
    if (made < 0 || in_vfork_child()) {
        return made;
    }
    if (caller::is_internal(caller)) {
        return made;
    }
    const Kind kind = table::kind(fd);
    if (kind == Kind::none || kind == Kind::internal) {
        table::remove(made);
        return made;
    }
    const caller::Inside inside;
    if ((kind > Kind::last_plain && Carrier::loaded().own->share(fd, made) != 0) ||
        !table::put(made, kind, table::entry(fd))) {
        real::close(made);
        errno = ENOMEM;
        return -1;
    }
    return made;
}

// A kernel's socket that may be carried later has one entry for all its numbers.
void know_before_dup(int fd, const void* caller) {
    if (table::kind(fd) != Kind::none || caller::is_for_internal(caller)) {
        return;
    }
    const int saved = errno;
    int protocol = 0;
    socklen_t length = sizeof(protocol);
    if (real::getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &length) == 0 && protocol == IPPROTO_TCP) {
        if (Entry* entry = table::new_entry(); entry != nullptr) {
            (void)table::put(fd, Kind::noted, entry);
        }
    }
    errno = saved;
}

int dup_onto(int fd, int onto, int flags, bool with_flags, const void* caller) {
    const auto kernel = [&] { return with_flags ? real::dup3(fd, onto, flags) : real::dup2(fd, onto); };
    if (in_vfork_child() || caller::is_internal(caller) || fd == onto || real::fcntl(fd, F_GETFD, 0UL) < 0) {
        return kernel();
    }
    if (table::kind(onto) == Kind::internal) {
        errno = EBADF; // beyond the numbers that the program may count with
        return -1;
    }
    know_before_dup(fd, caller);
    if (table::kind(onto) == Kind::none && table::kind(fd) == Kind::none) {
        return kernel();
    }
    const Changing changing;
    explain::closing(onto);
    const Kind replaced = table::kind(onto);
    table::remove(onto);
    if (replaced > Kind::last_plain) {
        const caller::Inside inside;
        (void)Carrier::loaded().own->drop(onto);
    }
    return shared(fd, kernel(), caller);
}

// A listener that is made anew after a fork is to be as it was.
void note_blocking(int fd, bool set, bool nonblocking) {
    if (Entry* entry = table::entry(fd); set && entry != nullptr) {
        entry->nonblocking = nonblocking;
    }
}

int control(int fd, int command, unsigned long argument, const void* caller) {
    if (command == F_DUPFD || command == F_DUPFD_CLOEXEC) {
        know_before_dup(fd, caller);
        const auto duplicate = [&] { return real::fcntl(fd, command, argument); };
        const bool beyond = argument > 0 && caller::is_internal(caller); // the library has chosen a number
        return shared(fd, beyond ? duplicate() : numbers::make(caller, duplicate), caller);
    }
    if (command != F_GETFL && command != F_SETFL) {
        return real::fcntl(fd, command, argument);
    }
    return route(
        fd, caller, [&] { return real::fcntl(fd, command, argument); },
        [&](const Carrier& c) {
            if (command == F_SETFL && (argument & O_ASYNC) != 0) {
                log("descriptor %d: O_ASYNC is refused, no signal would come", fd);
                errno = EINVAL;
                return -1;
            }
            note_blocking(fd, command == F_SETFL, (argument & O_NONBLOCK) != 0);
            return c.fcntl(fd, command, argument);
        });
}

// A question that is not about this socket: about interfaces, for example. Any socket can answer it.
int ask_any_socket(unsigned long request, unsigned long argument) {
    const int any = real::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (any < 0) {
        return -1;
    }
    const int ret = real::ioctl(any, request, argument);
    const int error = errno;
    real::close(any);
    errno = error;
    return ret;
}

} // namespace

} // namespace preload

int preload::close_number(int fd) { return close_on(fd, nullptr); }

using namespace preload;

PRELOAD_EXPORT int close(int fd) { return close_on(fd, PRELOAD_CALLER); }
PRELOAD_ALIAS(__close, close);

PRELOAD_EXPORT int close_range(unsigned first, unsigned last, int flags) noexcept {
    return close_all(first, last, static_cast<unsigned>(flags), PRELOAD_CALLER);
}

PRELOAD_EXPORT void closefrom(int first) noexcept {
    (void)close_all(static_cast<unsigned>(std::max(first, 0)), UINT_MAX, 0, PRELOAD_CALLER);
}

PRELOAD_EXPORT int dup(int fd) noexcept {
    const void* caller = PRELOAD_CALLER;
    know_before_dup(fd, caller);
    return shared(fd, numbers::make(caller, [&] { return real::dup(fd); }), caller);
}

PRELOAD_EXPORT int dup2(int fd, int onto) noexcept { return dup_onto(fd, onto, 0, false, PRELOAD_CALLER); }
PRELOAD_ALIAS(__dup2, dup2);

PRELOAD_EXPORT int dup3(int fd, int onto, int flags) noexcept {
    if (fd == onto || (flags & ~O_CLOEXEC) != 0) {
        return real::dup3(fd, onto, flags); // EINVAL
    }
    return dup_onto(fd, onto, flags, true, PRELOAD_CALLER);
}

#define ARGUMENT_OF(type, last)                                                                                        \
    va_list arguments;                                                                                                 \
    va_start(arguments, last);                                                                                         \
    const auto argument = va_arg(arguments, type);                                                                     \
    va_end(arguments)

PRELOAD_EXPORT int fcntl(int fd, int command, ...) {
    ARGUMENT_OF(unsigned long, command);
    return control(fd, command, argument, PRELOAD_CALLER);
}

PRELOAD_EXPORT int fcntl64(int fd, int command, ...) {
    ARGUMENT_OF(unsigned long, command);
    return control(fd, command, argument, PRELOAD_CALLER);
}
PRELOAD_ALIAS(__fcntl, fcntl);

// The number of a carried socket is one of epoll's to the kernel, which lets that be sought.
PRELOAD_EXPORT off_t lseek(int fd, off_t offset, int whence) noexcept {
    return route(
        fd, PRELOAD_CALLER, [&] { return real::lseek(fd, offset, whence); },
        [&](const Carrier&) -> off_t {
            errno = ESPIPE;
            return -1;
        });
}
PRELOAD_ALIAS(lseek64, lseek);

PRELOAD_EXPORT int ioctl(int fd, unsigned long request, ...) noexcept {
    ARGUMENT_OF(void*, request);
    const auto as_number = reinterpret_cast<unsigned long>(argument);
    int* value = static_cast<int*>(argument);
    return route(
        fd, PRELOAD_CALLER, [&] { return real::ioctl(fd, request, as_number); },
        [&](const Carrier& c) {
            if (request == FIOCLEX || request == FIONCLEX) {
                return real::ioctl(fd, request, as_number);
            }
            if (request == FIOASYNC && *value != 0) {
                errno = EINVAL; // no signal would come
                return -1;
            }
            if (request == FIOASYNC) {
                return 0;
            }
            const int ret = c.ioctl(fd, request, value);
            note_blocking(fd, ret == 0 && request == FIONBIO, value != nullptr && *value != 0);
            return ret < 0 && errno == ENOTTY && value != nullptr ? ask_any_socket(request, as_number) : ret;
        });
}
