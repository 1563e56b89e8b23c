// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Streams of stdio on carried sockets. libc reads and writes within itself, where nobody comes between; so a stream
// that is made of a carried number is one whose reading and writing are calls of ours.
#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "rsockets/preload/lock.hpp"
#include "rsockets/preload/route.hpp"

// Made by programs that were compiled with _FORTIFY_SOURCE.
extern "C" {
int __dprintf_chk(int fd, int flag, const char* format, ...);
int __vdprintf_chk(int fd, int flag, const char* format, va_list arguments);
}

namespace preload {

namespace {

// Streams and their numbers, for fileno(3).
struct Stream {
    FILE* file = nullptr;
    int fd = -1;
    Stream* next = nullptr;
};
constinit SpinLock streams_lock;
constinit Stream* streams = nullptr;

int number_of(void* cookie) { return static_cast<Stream*>(cookie)->fd; }

// Whose calls these are: the program's, whatever code makes them.
constexpr const void* program = nullptr;

ssize_t read_stream(void* cookie, char* buffer, size_t size) {
    const int fd = number_of(cookie);
    return route(
        fd, program, [&] { return real::read(fd, buffer, size); },
        [&](const Carrier& c) { return c.read(fd, buffer, size); });
}

ssize_t write_stream(void* cookie, const char* data, size_t size) {
    const int fd = number_of(cookie);
    size_t done = 0;
    while (done < size) {
        const ssize_t n = route(
            fd, program, [&] { return real::write(fd, data + done, size - done); },
            [&](const Carrier& c) { return c.write(fd, data + done, size - done); });
        if (n < 0) {
            return done != 0 ? static_cast<ssize_t>(done) : 0; // which is an error to stdio
        }
        done += static_cast<size_t>(n);
    }
    return static_cast<ssize_t>(done);
}

int close_stream(void* cookie) {
    auto* stream = static_cast<Stream*>(cookie);
    {
        const SpinLock::Hold hold(streams_lock);
        Stream** at = &streams;
        while (*at != nullptr && *at != stream) {
            at = &(*at)->next;
        }
        if (*at != nullptr) {
            *at = stream->next;
        }
    }
    const int ret = close_number(stream->fd);
    const int error = errno;
    free(stream);
    errno = error;
    return ret;
}

FILE* open_stream(int fd, const char* mode) {
    if (mode == nullptr || strchr("rwa", *mode) == nullptr || *mode == '\0') {
        errno = EINVAL;
        return nullptr;
    }
    auto* stream = static_cast<Stream*>(malloc(sizeof(Stream)));
    if (stream == nullptr) {
        return nullptr;
    }
    *stream = {nullptr, fd, nullptr};
    FILE* file = fopencookie(stream, mode, {read_stream, write_stream, nullptr, close_stream});
    if (file == nullptr) {
        free(stream);
        return nullptr;
    }
    if (strchr(mode, 'e') != nullptr) {
        (void)real::fcntl(fd, F_SETFD, static_cast<unsigned long>(FD_CLOEXEC));
    }
    const SpinLock::Hold hold(streams_lock);
    stream->file = file;
    stream->next = streams;
    streams = stream;
    return file;
}

// -1 if it is none of ours.
int number_of_stream(const FILE* file) {
    if (__atomic_load_n(&streams, __ATOMIC_ACQUIRE) == nullptr) {
        return -1;
    }
    const SpinLock::Hold hold(streams_lock);
    for (const Stream* one = streams; one != nullptr; one = one->next) {
        if (one->file == file) {
            return one->fd;
        }
    }
    return -1;
}

int print(int fd, const char* format, va_list arguments, const void* caller) {
    return route(
        fd, caller, [&] { return real::vdprintf(fd, format, arguments); },
        [&](const Carrier& c) {
            char* text = nullptr;
            const int length = vasprintf(&text, format, arguments);
            int done = 0;
            while (done < length) {
                const ssize_t n = c.write(fd, text + done, static_cast<size_t>(length - done));
                if (n < 0) {
                    free(text);
                    return -1;
                }
                done += static_cast<int>(n);
            }
            free(text);
            return length;
        });
}

} // namespace

void forget_streams_lock() { streams_lock.forget(); }

} // namespace preload

using namespace preload;

PRELOAD_EXPORT FILE* fdopen(int fd, const char* mode) noexcept {
    if (table::plain(fd) || !ours(fd, PRELOAD_CALLER) || table::kind(fd) == Kind::set) {
        return real::fdopen(fd, mode);
    }
    return open_stream(fd, mode);
}

PRELOAD_EXPORT int fileno(FILE* file) noexcept {
    const int fd = number_of_stream(file);
    return fd >= 0 ? fd : real::fileno(file);
}

PRELOAD_EXPORT int fileno_unlocked(FILE* file) noexcept {
    const int fd = number_of_stream(file);
    return fd >= 0 ? fd : real::fileno_unlocked(file);
}

PRELOAD_EXPORT int vdprintf(int fd, const char* format, va_list arguments) {
    return print(fd, format, arguments, PRELOAD_CALLER);
}

PRELOAD_EXPORT int dprintf(int fd, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int ret = print(fd, format, arguments, PRELOAD_CALLER);
    va_end(arguments);
    return ret;
}

PRELOAD_EXPORT int __vdprintf_chk(int fd, int, const char* format, va_list arguments) {
    return print(fd, format, arguments, PRELOAD_CALLER);
}

PRELOAD_EXPORT int __dprintf_chk(int fd, int, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int ret = print(fd, format, arguments, PRELOAD_CALLER);
    va_end(arguments);
    return ret;
}
