// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What stat(2) says of a carried socket: that it is one.
#include <cstring>

#include <sys/sysmacros.h>

#include "rsockets/preload/route.hpp"

namespace preload {

namespace {

// A socket of the kernel's is asked, and only the inode number is the carried one's own.
template <class Stat, class Ask> int stat_carried(int fd, Stat* out, Ask&& ask) {
    const int any = real::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (any < 0) {
        return -1;
    }
    const int ret = ask(any);
    const int error = errno;
    real::close(any);
    if (ret == 0) {
        out->st_ino = static_cast<ino_t>(reinterpret_cast<uintptr_t>(table::entry(fd)) / sizeof(void*));
    }
    errno = error;
    return ret;
}

template <class Stat, class Ask> int stat_of(int fd, Stat* out, const void* caller, Ask&& ask) {
    return route(
        fd, caller, [&] { return ask(fd); }, [&](const Carrier&) { return stat_carried(fd, out, ask); });
}

bool names_descriptor(const char* path, int flags) {
    return (flags & AT_EMPTY_PATH) != 0 && path != nullptr && *path == '\0';
}

} // namespace

} // namespace preload

using namespace preload;

PRELOAD_EXPORT int fstat(int fd, struct stat* out) noexcept {
    return stat_of(fd, out, PRELOAD_CALLER, [&](int one) { return real::fstat(one, out); });
}

PRELOAD_EXPORT int fstat64(int fd, struct stat64* out) noexcept {
    return stat_of(fd, out, PRELOAD_CALLER, [&](int one) { return real::fstat64(one, out); });
}

PRELOAD_EXPORT int __fxstat(int version, int fd, struct stat* out) {
    return stat_of(fd, out, PRELOAD_CALLER, [&](int one) { return real::__fxstat(version, one, out); });
}

PRELOAD_EXPORT int __fxstat64(int version, int fd, struct stat64* out) {
    return stat_of(fd, out, PRELOAD_CALLER, [&](int one) { return real::__fxstat64(version, one, out); });
}

PRELOAD_EXPORT int fstatat(int fd, const char* path, struct stat* out, int flags) noexcept {
    if (!names_descriptor(path, flags)) {
        return real::fstatat(fd, path, out, flags);
    }
    return stat_of(fd, out, PRELOAD_CALLER, [&](int one) { return real::fstatat(one, path, out, flags); });
}

PRELOAD_EXPORT int fstatat64(int fd, const char* path, struct stat64* out, int flags) noexcept {
    if (!names_descriptor(path, flags)) {
        return real::fstatat64(fd, path, out, flags);
    }
    return stat_of(fd, out, PRELOAD_CALLER, [&](int one) { return real::fstatat64(one, path, out, flags); });
}

PRELOAD_EXPORT int statx(int fd, const char* path, int flags, unsigned mask, struct statx* out) noexcept {
    if (!names_descriptor(path, flags)) {
        return real::statx(fd, path, flags, mask, out);
    }
    return route(
        fd, PRELOAD_CALLER, [&] { return real::statx(fd, path, flags, mask, out); },
        [&](const Carrier&) {
            struct stat plain {};
            const int ret = stat_carried(fd, &plain, [&](int one) { return real::statx(one, path, flags, mask, out); });
            if (ret == 0) {
                out->stx_ino = plain.st_ino;
            }
            return ret;
        });
}
