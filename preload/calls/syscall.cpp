// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// syscall(2), which libuv and others use for calls that libc has, or has under a name that they cannot rely on: each
// goes to the interposed function of the call. io_uring's do not, see Reason::past_library.
#include "preload/calls/export.hpp"
#include "preload/calls/real.hpp"
#include "preload/calls/single_thread.hpp"
#include "preload/connection/lifecycle.hpp"

#include <cerrno>
#include <cstdarg>

#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sys/syscall.h>

#include "preload/base/system.hpp"

using namespace preload;

namespace {

template <class T> T as(unsigned long value) {
    if constexpr (std::is_pointer_v<T>) {
        return reinterpret_cast<T>(value);
    } else {
        return static_cast<T>(value);
    }
}

template <class R, class... A, size_t... I>
long apply(R (*function)(A...), const unsigned long* arguments, std::index_sequence<I...>) {
    return static_cast<long>(function(as<A>(arguments[I])...));
}

template <class R, class... A> long apply(R (*function)(A...), const unsigned long* arguments) {
    return apply(function, arguments, std::index_sequence_for<A...>());
}
template <class R, class... A> long apply(R (*function)(A...) noexcept, const unsigned long* arguments) {
    return apply(static_cast<R (*)(A...)>(function), arguments);
}

// Whether the child has a copy of this process's memory and stack, as after fork.
bool copies_memory(long number, const unsigned long* a) {
    if (number == SYS_clone) {
        return (a[0] & CLONE_VM) == 0 && a[1] == 0;
    }
    if (number == SYS_clone3) {
        const auto* given = as<const clone_args*>(a[0]);
        return given != nullptr && a[1] >= CLONE_ARGS_SIZE_VER0 && (given->flags & CLONE_VM) == 0 && given->stack == 0;
    }
#ifdef SYS_fork
    return number == SYS_fork;
#else
    return false;
#endif
}

// Other uses of seccomp(2) are probes: without a program, it fails.
bool installs_filter(const unsigned long* a) {
    return (a[0] == SECCOMP_SET_MODE_STRICT && a[1] == 0 && a[2] == 0) ||
           (a[0] == SECCOMP_SET_MODE_FILTER && a[2] != 0);
}

} // namespace

// NOLINTBEGIN(clang-analyzer-valist.Uninitialized): the analyzer does not follow va_start here
PRELOAD_EXPORT long syscall(long number, ...) noexcept {
    unsigned long a[6];
    va_list rest;
    va_start(rest, number);
    for (unsigned long& one : a) {
        one = va_arg(rest, unsigned long);
    }
    va_end(rest);
    switch (number) {
    case SYS_read:
        return apply(::read, a);
    case SYS_write:
        return apply(::write, a);
    case SYS_readv:
        return apply(::readv, a);
    case SYS_writev:
        return apply(::writev, a);
    case SYS_recvfrom:
        return apply(::recvfrom, a);
    case SYS_sendto:
        return apply(::sendto, a);
    case SYS_recvmsg:
        return apply(::recvmsg, a);
    case SYS_sendmsg:
        return apply(::sendmsg, a);
    case SYS_recvmmsg:
        return apply(::recvmmsg, a);
    case SYS_sendmmsg:
        return apply(::sendmmsg, a);
    case SYS_sendfile:
        return apply(::sendfile, a);
    case SYS_splice:
        return apply(::splice, a);
    case SYS_close:
        return apply(::close, a);
    case SYS_close_range:
        return apply(::close_range, a);
    case SYS_dup:
        return apply(::dup, a);
    case SYS_dup3:
        return apply(::dup3, a);
    case SYS_fcntl:
        return ::fcntl(static_cast<int>(a[0]), static_cast<int>(a[1]), a[2]);
    case SYS_ioctl:
        return ::ioctl(static_cast<int>(a[0]), a[1], a[2]);
    case SYS_socket:
        return apply(::socket, a);
    case SYS_accept:
        return apply(::accept, a);
    case SYS_accept4:
        return apply(::accept4, a);
    case SYS_connect:
        return apply(::connect, a);
    case SYS_listen:
        return apply(::listen, a);
    case SYS_shutdown:
        return apply(::shutdown, a);
    case SYS_setsockopt:
        return apply(::setsockopt, a);
    case SYS_getsockopt:
        return apply(::getsockopt, a);
    case SYS_epoll_ctl:
        return apply(::epoll_ctl, a);
    case SYS_epoll_create1:
        return apply(::epoll_create1, a);
    case SYS_epoll_pwait:
        return apply(::epoll_pwait, a);
    case SYS_epoll_pwait2:
        return apply(::epoll_pwait2, a);
#ifdef SYS_dup2 // only on older architectures
    case SYS_dup2:
        return apply(::dup2, a);
    case SYS_poll:
        return apply(::poll, a);
    case SYS_epoll_wait:
        return apply(::epoll_wait, a);
    case SYS_epoll_create:
        return apply(::epoll_create, a);
#endif
    case SYS_ppoll: {
        timespec* time = as<timespec*>(a[2]);
        return ::ppoll(as<pollfd*>(a[0]), a[1], time, as<const sigset_t*>(a[3]));
    }
    case SYS_execve:
        return apply(::execve, a);
    case SYS_clone:
    case SYS_clone3:
#ifdef SYS_fork
    case SYS_fork:
    case SYS_vfork:
#endif
        if (copies_memory(number, a)) {
            lifecycle::before_forking();
            const long child = real::syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
            lifecycle::after_forking(child);
            return child;
        }
        lifecycle::note_unseen_child();
        break;
    case SYS_seccomp:
        if (installs_filter(a)) {
            lifecycle::leave_everything_to_the_kernel();
        }
        break;
    case SYS_unshare:
        return apply(::unshare, a);
    case SYS_setns:
        return apply(::setns, a);
    case SYS_capset:
    case SYS_landlock_restrict_self:
        return single_thread::with_one([&] { return real::syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]); });
    case SYS_prctl:
        return ::prctl(static_cast<int>(a[0]), a[1], a[2], a[3], a[4]);
    case SYS_pidfd_getfd: {
        const long fd = real::syscall(number, a[0], a[1], a[2]);
        if (fd >= 0) {
            lifecycle::adopt(static_cast<int>(fd));
        }
        return fd;
    }
    default:
        break;
    }
    return real::syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
// NOLINTEND(clang-analyzer-valist.Uninitialized)
