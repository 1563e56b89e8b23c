// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// New descriptors and threads. Those that the socket library and what is below it make for themselves get numbers
// beyond the program's; threads of theirs are marked.
#include <cerrno>
#include <cstdarg>
#include <cstdlib>

#include "rsockets/preload/carrier.hpp"
#include "rsockets/preload/export.hpp"
#include "rsockets/preload/numbers.hpp"
#include "rsockets/preload/real.hpp"

namespace preload {

namespace {

// The number is new: whatever was known of it was closed behind our back.
int known(int fd, const void* caller) {
    if (fd >= 0 && table::kind(fd) != Kind::none && !caller::is_internal(caller)) [[unlikely]] {
        table::remove(fd);
    }
    return fd;
}

template <class Call> int make(const void* caller, Call&& call) { return known(numbers::make(caller, call), caller); }

template <class Call> int make_pair(int* fds, const void* caller, Call&& call) {
    if (caller::is_internal(caller)) {
        const numbers::LibraryMakes held;
        const int ret = call();
        if (ret == 0) {
            fds[0] = move_away(fds[0]);
            fds[1] = move_away(fds[1]);
        }
        return ret;
    }
    const numbers::ProgramMakes held;
    const int ret = call();
    if (ret == 0) {
        (void)known(fds[0], caller);
        (void)known(fds[1], caller);
    }
    return ret;
}

// The program's may wait for another process, as for a FIFO's.
template <class Call> int make_by_open(const void* caller, Call&& call) {
    return caller::is_internal(caller) ? make(caller, call) : known(call(), caller);
}

struct Start {
    void* (*routine)(void*);
    void* argument;
};

// All that such a thread does is the library's.
void* run_inside(void* data) {
    const Start start = *static_cast<Start*>(data);
    free(data);
    ++caller::Inside::depth;
    return start.routine(start.argument);
}

} // namespace

} // namespace preload

using namespace preload;

PRELOAD_EXPORT int socket(int domain, int type, int protocol) noexcept {
    return make(PRELOAD_CALLER, [&] { return real::socket(domain, type, protocol); });
}

PRELOAD_EXPORT int socketpair(int domain, int type, int protocol, int fds[2]) noexcept {
    return make_pair(fds, PRELOAD_CALLER, [&] { return real::socketpair(domain, type, protocol, fds); });
}

PRELOAD_EXPORT int eventfd(unsigned count, int flags) noexcept {
    return make(PRELOAD_CALLER, [&] { return real::eventfd(count, flags); });
}

PRELOAD_EXPORT int timerfd_create(clockid_t clock, int flags) noexcept {
    return make(PRELOAD_CALLER, [&] { return real::timerfd_create(clock, flags); });
}

PRELOAD_EXPORT int pipe(int fds[2]) noexcept {
    return make_pair(fds, PRELOAD_CALLER, [&] { return real::pipe(fds); });
}

PRELOAD_EXPORT int pipe2(int fds[2], int flags) noexcept {
    return make_pair(fds, PRELOAD_CALLER, [&] { return real::pipe2(fds, flags); });
}

namespace {

bool has_mode(int flags) { return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE; }

} // namespace

// NOLINTBEGIN(clang-analyzer-valist.Uninitialized): the analyzer does not follow va_start here
PRELOAD_EXPORT int open(const char* path, int flags, ...) {
    unsigned long mode = 0;
    if (has_mode(flags)) {
        va_list arguments;
        va_start(arguments, flags);
        mode = va_arg(arguments, mode_t);
        va_end(arguments);
    }
    return make_by_open(PRELOAD_CALLER, [&] { return real::open(path, flags, mode); });
}

PRELOAD_EXPORT int open64(const char* path, int flags, ...) {
    unsigned long mode = 0;
    if (has_mode(flags)) {
        va_list arguments;
        va_start(arguments, flags);
        mode = va_arg(arguments, mode_t);
        va_end(arguments);
    }
    return make_by_open(PRELOAD_CALLER, [&] { return real::open64(path, flags, mode); });
}
// NOLINTEND(clang-analyzer-valist.Uninitialized)

PRELOAD_EXPORT int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*routine)(void*),
                                  void* argument) noexcept {
    if (!caller::is_for_internal(PRELOAD_CALLER)) {
        return real::pthread_create(thread, attributes, routine, argument);
    }
    auto* start = static_cast<Start*>(malloc(sizeof(Start)));
    if (start == nullptr) {
        return EAGAIN;
    }
    *start = {routine, argument};
    const int error = real::pthread_create(thread, attributes, run_inside, start);
    if (error != 0) {
        free(start);
    }
    return error;
}
