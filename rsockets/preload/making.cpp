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
#include "rsockets/preload/real.hpp"

namespace preload {

namespace {

// The number is new: whatever was known of it was closed behind our back.
int made(int fd, const void* caller) {
    if (fd < 0) {
        return fd;
    }
    if (caller::is_internal(caller)) {
        return move_away(fd);
    }
    if (table::kind(fd) != Kind::none) [[unlikely]] {
        table::remove(fd);
    }
    return fd;
}

int made_pair(int ret, int* fds, const void* caller) {
    if (ret == 0) {
        fds[0] = made(fds[0], caller);
        fds[1] = made(fds[1], caller);
    }
    return ret;
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
    return made(real::socket(domain, type, protocol), PRELOAD_CALLER);
}

PRELOAD_EXPORT int socketpair(int domain, int type, int protocol, int fds[2]) noexcept {
    return made_pair(real::socketpair(domain, type, protocol, fds), fds, PRELOAD_CALLER);
}

PRELOAD_EXPORT int eventfd(unsigned count, int flags) noexcept {
    return made(real::eventfd(count, flags), PRELOAD_CALLER);
}

PRELOAD_EXPORT int timerfd_create(clockid_t clock, int flags) noexcept {
    return made(real::timerfd_create(clock, flags), PRELOAD_CALLER);
}

PRELOAD_EXPORT int pipe(int fds[2]) noexcept { return made_pair(real::pipe(fds), fds, PRELOAD_CALLER); }

PRELOAD_EXPORT int pipe2(int fds[2], int flags) noexcept {
    return made_pair(real::pipe2(fds, flags), fds, PRELOAD_CALLER);
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
    return made(real::open(path, flags, mode), PRELOAD_CALLER);
}

PRELOAD_EXPORT int open64(const char* path, int flags, ...) {
    unsigned long mode = 0;
    if (has_mode(flags)) {
        va_list arguments;
        va_start(arguments, flags);
        mode = va_arg(arguments, mode_t);
        va_end(arguments);
    }
    return made(real::open64(path, flags, mode), PRELOAD_CALLER);
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
