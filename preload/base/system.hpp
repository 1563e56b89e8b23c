// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// System calls that are not cancellation points and leave errno unchanged: for sections in which a thread must not be
// unwound. Negative results are -errno.
#pragma once

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>

#include "preload/calls/real.hpp"

namespace preload::sys {

template <class T> unsigned long word(T value) {
    if constexpr (std::is_null_pointer_v<T>) {
        return 0;
    } else if constexpr (std::is_pointer_v<T>) {
        return reinterpret_cast<unsigned long>(value);
    } else {
        return static_cast<unsigned long>(value);
    }
}

#if defined(__x86_64__)
[[gnu::always_inline]] inline long invoke(long number, unsigned long a = 0, unsigned long b = 0, unsigned long c = 0,
                                          unsigned long d = 0, unsigned long e = 0, unsigned long f = 0) {
    long result = 0;
    register unsigned long r10 __asm__("r10") = d;
    register unsigned long r8 __asm__("r8") = e;
    register unsigned long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
#else
[[gnu::always_inline]] inline long invoke(long number, unsigned long a = 0, unsigned long b = 0, unsigned long c = 0,
                                          unsigned long d = 0, unsigned long e = 0, unsigned long f = 0) {
    const int saved = errno;
    const long result = real::syscall(number, a, b, c, d, e, f);
    const long negative = result == -1 ? -static_cast<long>(errno) : result;
    errno = saved;
    return negative;
}
#endif

template <class... A> long call(long number, A... arguments) { return invoke(number, word(arguments)...); }

inline long recv(int fd, void* buffer, size_t size, int flags) {
    return call(SYS_recvfrom, fd, buffer, size, flags, nullptr, nullptr);
}
inline long send(int fd, const void* data, size_t size, int flags) {
    return call(SYS_sendto, fd, data, size, flags, nullptr, 0);
}
inline long poll(pollfd* fds, nfds_t count, int milliseconds) {
    const timespec time{milliseconds / 1000, (milliseconds % 1000) * 1000000L};
    return call(SYS_ppoll, fds, count, &time, nullptr, 0);
}
// Sleeps. A signal may end it early: callers wait for something, and check that again.
inline void sleep_ms(int milliseconds) { sys::poll(nullptr, 0, milliseconds); }
// The same, until fd has one of these events at the latest.
inline void sleep_until(int fd, short events, int milliseconds) {
    pollfd one{fd, events, 0};
    sys::poll(&one, 1, milliseconds);
}
// Which of these events the kernel reports, and POLLERR, POLLHUP; none if it cannot be asked.
inline short events_now(int fd, short wanted) {
    pollfd one{fd, wanted, 0};
    return sys::poll(&one, 1, 0) > 0 ? one.revents : short{0};
}
inline long ioctl(int fd, unsigned long request, void* value) { return call(SYS_ioctl, fd, request, value); }
inline long getsockopt(int fd, int level, int name, void* value, socklen_t* length) {
    return call(SYS_getsockopt, fd, level, name, value, length);
}

// The result of a call that may make a file longer than the program's RLIMIT_FSIZE, a file in memory too. There the
// kernel raises SIGXFSZ for this thread, which is taken away again unless the program has one pending.
template <class Call> long without_file_limit_signal(Call&& make) {
    constexpr uint64_t file_limit = uint64_t{1} << (SIGXFSZ - 1);
    uint64_t before = 0;
    uint64_t pending = 0;
    call(SYS_rt_sigprocmask, SIG_BLOCK, &file_limit, &before, sizeof(before));
    call(SYS_rt_sigpending, &pending, sizeof(pending));
    const long result = make();
    if (result == -EFBIG && (pending & file_limit) == 0) {
        const timespec none{};
        call(SYS_rt_sigtimedwait, &file_limit, nullptr, &none, sizeof(file_limit));
    }
    call(SYS_rt_sigprocmask, SIG_SETMASK, &before, nullptr, sizeof(before));
    return result;
}

inline uint64_t now_ns() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1000000000U + static_cast<uint64_t>(time.tv_nsec);
}

// Calls done(), which yields, until it returns true. False: the time is over.
template <class Done> bool wait_for(uint64_t timeout_ns, Done&& done) {
    const uint64_t end = now_ns() + timeout_ns;
    bool is_done = done();
    while (!is_done && now_ns() < end) {
        is_done = done();
    }
    return is_done;
}

// Lets other threads run: also those of a lower priority once this one has waited for a millisecond.
inline void yield_since(uint64_t begin_ns) {
    constexpr uint64_t short_ns = 1000000;
    if (now_ns() - begin_ns < short_ns) {
        call(SYS_sched_yield);
    } else {
        const timespec pause{0, 100000};
        call(SYS_nanosleep, &pause, nullptr); // no cancellation point
    }
}

// Restores errno at the end of the scope.
class ErrnoKept {
  public:
    ErrnoKept() : saved_(errno) {}
    ErrnoKept(const ErrnoKept&) = delete;
    ErrnoKept& operator=(const ErrnoKept&) = delete;
    ~ErrnoKept() { errno = saved_; }
    void set(int error) { saved_ = error; } // to be restored instead

  private:
    int saved_;
};

} // namespace preload::sys
