// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// poll and select, over any mix of numbers. Where none is carried, they are libc's.
#include "rsockets/preload/wait.hpp"

#include <algorithm>
#include <array>
#include <cerrno>

#include "rsockets/preload/carrier.hpp"
#include "rsockets/preload/export.hpp"
#include "rsockets/preload/real.hpp"

using namespace preload;

extern "C" [[noreturn]] void __chk_fail() noexcept;

namespace {

bool all_plain(const pollfd* fds, nfds_t count) {
    return std::all_of(fds, fds + count, [](const pollfd& one) { return table::plain(one.fd); });
}

// Whether the library is needed, after pending numbers have settled.
bool any_ours(const pollfd* fds, nfds_t count, const void* caller) {
    bool any = false;
    for (nfds_t i = 0; i < count; ++i) {
        any = (!table::plain(fds[i].fd) && ours(fds[i].fd, caller)) || any;
    }
    return any;
}

// At once: not in the library, which looks at memory that may not be there.
bool is_plain_poll(const pollfd* fds, nfds_t count) {
    return fds == nullptr || count > table::chunk_size * table::chunk_count || all_plain(fds, count);
}

int poll_mixed(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask, const void* caller) {
    TimeLeft time(timeout);
    for (;;) {
        if (!any_ours(fds, count, caller)) {
            return real::ppoll(fds, count, time.left(), mask);
        }
        const caller::Inside inside;
        const int ret = Carrier::loaded().ppoll(fds, count, time.left(), mask);
        if (ret >= 0 || errno != ESTALE) { // ESTALE: a connect failed that has another way, which is taken now
            return ret;
        }
    }
}

int poll_for(pollfd* fds, nfds_t count, int timeout, const void* caller) {
    if (is_plain_poll(fds, count)) {
        return real::poll(fds, count, timeout);
    }
    const timespec limit = of_milliseconds(std::max(timeout, 0));
    return poll_mixed(fds, count, timeout < 0 ? nullptr : &limit, nullptr, caller);
}

int poll_for(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask, const void* caller) {
    if (is_plain_poll(fds, count) || (timeout != nullptr && !valid(*timeout))) {
        return real::ppoll(fds, count, timeout, mask);
    }
    return poll_mixed(fds, count, timeout, mask, caller);
}

// Calls body(fd) for the numbers of up to three sets; true if any call was.
template <class Body> bool any_in(int count, const std::array<fd_set*, 3>& sets, Body&& body) {
    bool any = false;
    constexpr int bits = 8 * sizeof(fd_mask);
    for (int first = 0; first < count; first += bits) {
        fd_mask mask = 0;
        for (const fd_set* set : sets) {
            mask |= set != nullptr ? reinterpret_cast<const fd_mask*>(set)[first / bits] : 0;
        }
        auto left = static_cast<unsigned long>(mask);
        while (left != 0) {
            const int fd = first + __builtin_ctzl(left);
            left &= left - 1;
            any = (fd < count && body(fd)) || any;
        }
    }
    return any;
}

bool any_ours(int count, const std::array<fd_set*, 3>& sets, const void* caller) {
    return any_in(count, sets, [](int fd) { return !table::plain(fd); }) &&
           any_in(count, sets, [&](int fd) { return !table::plain(fd) && ours(fd, caller); });
}

} // namespace

PRELOAD_EXPORT int poll(struct pollfd* fds, nfds_t count, int timeout) {
    return poll_for(fds, count, timeout, PRELOAD_CALLER);
}
PRELOAD_ALIAS(__poll, poll);

PRELOAD_EXPORT int ppoll(struct pollfd* fds, nfds_t count, const struct timespec* timeout, const sigset_t* mask) {
    return poll_for(fds, count, timeout, mask, PRELOAD_CALLER);
}

PRELOAD_EXPORT int __poll_chk(struct pollfd* fds, nfds_t count, int timeout, size_t room) {
    if (room / sizeof(*fds) < count) {
        __chk_fail();
    }
    return poll_for(fds, count, timeout, PRELOAD_CALLER);
}

PRELOAD_EXPORT int __ppoll_chk(struct pollfd* fds, nfds_t count, const struct timespec* timeout, const sigset_t* mask,
                               size_t room) {
    if (room / sizeof(*fds) < count) {
        __chk_fail();
    }
    return poll_for(fds, count, timeout, mask, PRELOAD_CALLER);
}

PRELOAD_EXPORT int pselect(int count, fd_set* in, fd_set* out, fd_set* except, const struct timespec* timeout,
                           const sigset_t* mask) {
    const void* caller = PRELOAD_CALLER;
    if (timeout != nullptr && !valid(*timeout)) {
        return real::pselect(count, in, out, except, timeout, mask);
    }
    TimeLeft time(timeout);
    for (;;) {
        if (!any_ours(count, {in, out, except}, caller)) {
            return real::pselect(count, in, out, except, time.left(), mask);
        }
        const caller::Inside inside;
        const int ret = Carrier::loaded().pselect(count, in, out, except, time.left(), mask);
        if (ret >= 0 || errno != ESTALE) {
            return ret;
        }
    }
}

PRELOAD_EXPORT int select(int count, fd_set* in, fd_set* out, fd_set* except, struct timeval* timeout) {
    const void* caller = PRELOAD_CALLER;
    if ((timeout != nullptr && (timeout->tv_sec < 0 || timeout->tv_usec < 0)) ||
        !any_ours(count, {in, out, except}, caller)) {
        return real::select(count, in, out, except, timeout);
    }
    timespec limit{};
    if (timeout != nullptr) {
        limit = {std::min(timeout->tv_sec, longest_time + 1) + timeout->tv_usec / 1000000,
                 timeout->tv_usec % 1000000 * 1000};
    }
    TimeLeft time(timeout != nullptr ? &limit : nullptr);
    int ret = 0;
    for (bool again = true; again;) {
        if (any_ours(count, {in, out, except}, caller)) {
            const caller::Inside inside;
            ret = Carrier::loaded().pselect(count, in, out, except, time.left(), nullptr);
            again = ret < 0 && errno == ESTALE;
        } else {
            ret = real::pselect(count, in, out, except, time.left(), nullptr);
            again = false;
        }
    }
    const int error = errno;
    if (const timespec* left = time.left(); left != nullptr) { // Linux tells what is left of it
        *timeout = {left->tv_sec, left->tv_nsec / 1000};
    }
    errno = error;
    return ret;
}
PRELOAD_ALIAS(__select, select);
