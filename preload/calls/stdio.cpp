// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Functions of libc that read and write inside libc, where no call can be interposed: connections that they use stay
// with the kernel.
#include "preload/calls/export.hpp"
#include "preload/calls/real.hpp"
#include "preload/connection/io.hpp"
#include "preload/connection/lifecycle.hpp"
#include "preload/connection/outside_use.hpp"

#include <cstdarg>
#include <cstdlib>

using namespace preload;

extern "C" {
int __dprintf_chk(int fd, int flag, const char* format, ...);
int __vdprintf_chk(int fd, int flag, const char* format, va_list arguments);
}

namespace {

int print(int fd, const char* format, va_list arguments) {
    if (table::connection(fd) == nullptr) {
        return real::vdprintf(fd, format, arguments);
    }
    char* text = nullptr;
    const int length = vasprintf(&text, format, arguments);
    int done = 0;
    while (done < length) {
        const ssize_t n = write(fd, text + done, static_cast<size_t>(length - done));
        if (n < 0) {
            free(text);
            return -1;
        }
        done += static_cast<int>(n);
    }
    free(text);
    return length;
}

} // namespace

PRELOAD_EXPORT FILE* fdopen(int fd, const char* mode) noexcept {
    outside_use::hand_over(fd, Reason::stdio);
    return real::fdopen(fd, mode);
}

PRELOAD_EXPORT int fclose(FILE* file) {
    const int fd = file != nullptr ? fileno_unlocked(file) : -1;
    if (fd < 0 || table::find(fd) == 0) [[likely]] {
        return real::fclose(file);
    }
    return lifecycle::close(fd, [&](bool) { return real::fclose(file); });
}

PRELOAD_EXPORT int vdprintf(int fd, const char* format, va_list arguments) { return print(fd, format, arguments); }

// NOLINTBEGIN(clang-analyzer-valist.Uninitialized): the analyzer does not follow va_start here
PRELOAD_EXPORT int dprintf(int fd, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int result = print(fd, format, arguments);
    va_end(arguments);
    return result;
}

PRELOAD_EXPORT int __vdprintf_chk(int fd, int, const char* format, va_list arguments) {
    return print(fd, format, arguments);
}

PRELOAD_EXPORT int __dprintf_chk(int fd, int, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int result = print(fd, format, arguments);
    va_end(arguments);
    return result;
}
// NOLINTEND(clang-analyzer-valist.Uninitialized)

PRELOAD_EXPORT int aio_read(struct aiocb* operation) noexcept {
    outside_use::hand_over(operation->aio_fildes, Reason::asynchronous);
    return real::aio_read(operation);
}
PRELOAD_EXPORT __attribute__((alias("aio_read"))) int aio_read64(struct aiocb64* operation) noexcept;

PRELOAD_EXPORT int aio_write(struct aiocb* operation) noexcept {
    outside_use::hand_over(operation->aio_fildes, Reason::asynchronous);
    return real::aio_write(operation);
}
PRELOAD_EXPORT __attribute__((alias("aio_write"))) int aio_write64(struct aiocb64* operation) noexcept;

PRELOAD_EXPORT int lio_listio(int mode, struct aiocb* const list[], int count, struct sigevent* event) noexcept {
    for (int i = 0; i < count; ++i) {
        if (list[i] != nullptr && list[i]->aio_lio_opcode != LIO_NOP) {
            outside_use::hand_over(list[i]->aio_fildes, Reason::asynchronous);
        }
    }
    return real::lio_listio(mode, list, count, event);
}
PRELOAD_EXPORT __attribute__((alias("lio_listio"))) int lio_listio64(int mode, struct aiocb64* const list[], int count,
                                                                     struct sigevent* event) noexcept;
