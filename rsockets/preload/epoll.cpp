// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The calls on epoll sets: see epoll_sets.cpp.
#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <string_view>

#include "rsockets/preload/carrier.hpp"
#include "rsockets/preload/export.hpp"
#include "rsockets/preload/kick.hpp"
#include "rsockets/preload/log.hpp"
#include "rsockets/preload/numbers.hpp"
#include "rsockets/preload/real.hpp"
#include "rsockets/preload/wait.hpp"

namespace preload {

namespace {

template <class Call> int make_set(const void* caller, Call&& call) {
    const int fd = numbers::make(caller, call);
    if (fd < 0 || caller::is_internal(caller)) {
        return fd;
    }
    if (Entry* entry = table::new_entry(); entry != nullptr) {
        (void)table::put(fd, Kind::kernel_set, entry);
    }
    return fd;
}

bool is_epoll_set(int fd) {
    std::array<char, 64> path{};
    std::array<char, 64> target{};
    snprintf(path.data(), path.size(), "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(path.data(), target.data(), target.size());
    return length > 0 && std::string_view(target.data(), static_cast<size_t>(length)) == "anon_inode:[eventpoll]";
}

// A set that something carried is put into. False: it is no set, or cannot be one of the library's.
bool made_ready(int set, int operation, int& error) {
    error = 0;
    if (table::kind(set) == Kind::set) {
        return true;
    }
    if (operation != EPOLL_CTL_ADD || (table::kind(set) != Kind::kernel_set && !is_epoll_set(set))) {
        return false; // the kernel says what is wrong
    }
    error = convert_set(Carrier::loaded(), set);
    return error == 0;
}

// With a time limit of ppoll(2)'s kind. `kernel` waits in the kernel's.
template <class Kernel>
int wait_for(int set, epoll_event* events, int most, const timespec* limit, const sigset_t* mask, const void* caller,
             Kernel&& kernel) {
    TimeLeft time(limit);
    for (;;) {
        const Kind kind = table::kind(set);
        if (kind == Kind::set && !caller::is_internal(caller)) {
            int ret = 0;
            {
                const caller::Inside inside;
                ret = Carrier::loaded().own->epoll_wait(set, events, most, time.left(), mask);
            }
            if (ret < 0 && errno == ESTALE) {
                settle_all();
                continue;
            }
            const int left = kick::without_kicks(events, ret);
            if (left != 0 || ret <= 0) {
                return left;
            }
            continue;
        }
        Entry* entry = table::entry(set);
        if (kind != Kind::kernel_set || entry == nullptr) {
            return kernel(limit != nullptr ? time.left() : nullptr);
        }
        const kick::Waiting waiting(*entry);
        if (table::kind(set) != Kind::kernel_set) {
            continue;
        }
        const int ret = kernel(limit != nullptr ? time.left() : nullptr);
        if (entry->kick.load() < 0) [[likely]] {
            return ret;
        }
        const int left = kick::without_kicks(events, ret);
        if (left != 0 || ret <= 0) {
            return left;
        }
    }
}

// Rounded up, as the kernel's own conversion does not wake early.
int milliseconds(const timespec* left) {
    if (left == nullptr) {
        return -1;
    }
    const long long time = 1000LL * left->tv_sec + (left->tv_nsec + 999999) / 1000000;
    return static_cast<int>(std::min<long long>(time, INT_MAX));
}

int wait_milliseconds(int set, epoll_event* events, int most, int timeout, const sigset_t* mask, const void* caller) {
    const timespec limit = of_milliseconds(std::max(timeout, 0));
    return wait_for(set, events, most, timeout < 0 ? nullptr : &limit, mask, caller, [&](const timespec* left) {
        return real::epoll_pwait(set, events, most, left != nullptr && timeout == 0 ? 0 : milliseconds(left), mask);
    });
}

} // namespace

} // namespace preload

using namespace preload;

PRELOAD_EXPORT int epoll_create(int size) noexcept {
    return make_set(PRELOAD_CALLER, [&] { return real::epoll_create(size); });
}

PRELOAD_EXPORT int epoll_create1(int flags) noexcept {
    return make_set(PRELOAD_CALLER, [&] { return real::epoll_create1(flags); });
}

PRELOAD_EXPORT int epoll_ctl(int set, int operation, int fd, struct epoll_event* event) noexcept {
    const void* caller = PRELOAD_CALLER;
    if ((table::plain(set) && table::plain(fd)) || caller::is_internal(caller)) [[likely]] {
        return real::epoll_ctl(set, operation, fd, event);
    }
    const bool library = !table::plain(fd) && ours(fd, caller);
    if (table::kind(fd) == Kind::inherited) {
        errno = ECONNRESET;
        return -1;
    }
    int error = 0;
    if (library && event != nullptr && !made_ready(set, operation, error)) {
        if (error != 0) {
            errno = error;
            return -1;
        }
        return real::epoll_ctl(set, operation, fd, event);
    }
    if (table::kind(set) != Kind::set) {
        return real::epoll_ctl(set, operation, fd, event);
    }
    const caller::Inside inside;
    return Carrier::loaded().epoll_ctl(set, operation, fd, event);
}

PRELOAD_EXPORT int epoll_wait(int set, struct epoll_event* events, int most, int timeout) {
    return wait_milliseconds(set, events, most, timeout, nullptr, PRELOAD_CALLER);
}

PRELOAD_EXPORT int epoll_pwait(int set, struct epoll_event* events, int most, int timeout, const sigset_t* mask) {
    return wait_milliseconds(set, events, most, timeout, mask, PRELOAD_CALLER);
}

PRELOAD_EXPORT int epoll_pwait2(int set, struct epoll_event* events, int most, const struct timespec* timeout,
                                const sigset_t* mask) {
    const void* caller = PRELOAD_CALLER;
    if (timeout != nullptr && !valid(*timeout)) {
        return real::epoll_pwait2(set, events, most, timeout, mask);
    }
    return wait_for(set, events, most, timeout, mask, caller,
                    [&](const timespec* left) { return real::epoll_pwait2(set, events, most, left, mask); });
}
