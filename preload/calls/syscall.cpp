// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// syscall(2), which libuv and others use for calls that libc has, or has under a name that they cannot rely on: each
// goes to the interposed function of the call. io_uring's do not, see Reason::past_library.
#include "preload/calls/export.hpp"
#include "preload/calls/real.hpp"
#include "preload/calls/single_thread.hpp"
#include "preload/connection/lifecycle.hpp"
#include "preload/connection/outside_use.hpp"
#include "preload/rendezvous/service.hpp"

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstring>

#include <linux/aio_abi.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/uio.h>

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

// syscall() is no cancellation point, and is not to be unwound.
class NotCancellable {
  public:
    NotCancellable() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
    NotCancellable(const NotCancellable&) = delete;
    NotCancellable& operator=(const NotCancellable&) = delete;
    ~NotCancellable() { pthread_setcancelstate(before_, nullptr); }

  private:
    int before_ = PTHREAD_CANCEL_ENABLE;
};

template <class R, class... A, size_t... I>
long apply(R (*function)(A...), const unsigned long* arguments, std::index_sequence<I...>) {
    const NotCancellable now;
    return static_cast<long>(function(as<A>(arguments[I])...));
}

template <class R, class... A> long apply(R (*function)(A...), const unsigned long* arguments) {
    return apply(function, arguments, std::index_sequence_for<A...>());
}
template <class R, class... A> long apply(R (*function)(A...) noexcept, const unsigned long* arguments) {
    return apply(static_cast<R (*)(A...)>(function), arguments);
}

// The kernel's mask is shorter than libc's.
class Mask {
  public:
    Mask(unsigned long at, size_t size) : valid_(at == 0 || size == kernel_size), given_(at != 0) {
        sigemptyset(&copy_);
        if (given_ && valid_) {
            memcpy(&copy_, as<const void*>(at), kernel_size);
        }
    }
    [[nodiscard]] bool is_valid() const { return valid_; }
    [[nodiscard]] const sigset_t* get() const { return given_ ? &copy_ : nullptr; }

  private:
    static constexpr size_t kernel_size = _NSIG / 8;
    const bool valid_;
    const bool given_;
    sigset_t copy_;
};

// By the kernel, since the memory may be constant: then nothing is stored, and nobody looks there.
void store_if_writable(timespec* to, timespec value) {
    const iovec from_here{&value, sizeof(value)};
    const iovec there{to, sizeof(value)};
    sys::call(SYS_process_vm_writev, sys::call(SYS_getpid), &from_here, 1, &there, 1, 0);
}

// Calls wait(), and stores how much of the time is left, as ppoll and pselect6 do, but not libc's functions.
template <class Wait> long wait_for(timespec* time, Wait&& wait) {
    const NotCancellable now;
    const timespec given = time != nullptr ? *time : timespec{};
    const uint64_t begin = sys::now_ns();
    const long result = wait();
    const bool lasts = given.tv_sec > 0 || (given.tv_sec == 0 && given.tv_nsec > 0);
    if (!lasts || (result < 0 && errno == EINVAL)) {
        return result;
    }
    const uint64_t passed = sys::now_ns() - begin;
    timespec left{given.tv_sec - static_cast<time_t>(passed / 1000000000),
                  given.tv_nsec - static_cast<long>(passed % 1000000000)};
    if (left.tv_nsec < 0) {
        left.tv_nsec += 1000000000;
        --left.tv_sec;
    }
    store_if_writable(time, left.tv_sec < 0 ? timespec{} : left);
    return result;
}

// The kernel's asynchronous operations, which do not go through libc.
void hand_over_submitted(long count, const iocb* const* requests) {
    for (long i = 0; requests != nullptr && i < count && requests[i] != nullptr; ++i) {
        outside_use::hand_over(static_cast<int>(requests[i]->aio_fildes), Reason::asynchronous);
    }
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
// As libc's, it reads six arguments, however many there are: the last one is in the caller's frame.
PRELOAD_EXPORT __attribute__((no_sanitize_address)) long syscall(long number, ...) noexcept {
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
    case SYS_epoll_pwait2:
        if (const Mask mask(a[4], a[5]); mask.is_valid()) {
            a[4] = reinterpret_cast<unsigned long>(mask.get());
            return number == SYS_epoll_pwait ? apply(::epoll_pwait, a) : apply(::epoll_pwait2, a);
        }
        break;
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
#ifdef SYS_select
    case SYS_select:
        return apply(::select, a);
#endif
    case SYS_ppoll:
        if (const Mask mask(a[3], a[4]); mask.is_valid()) {
            a[3] = reinterpret_cast<unsigned long>(mask.get());
            return wait_for(as<timespec*>(a[2]), [&] { return apply(::ppoll, a); });
        }
        break;
    case SYS_pselect6: {
        const auto* given = as<const unsigned long*>(a[5]); // the mask, and its size
        if (const Mask mask(given != nullptr ? given[0] : 0, given != nullptr ? given[1] : 0); mask.is_valid()) {
            a[5] = reinterpret_cast<unsigned long>(mask.get());
            return wait_for(as<timespec*>(a[4]), [&] { return apply(::pselect, a); });
        }
        break;
    }
    case SYS_preadv2:
    case SYS_pwritev2:
        static_assert(sizeof(off_t) == sizeof(long), "the second word of the offset is not used");
        a[4] = a[5];
        return number == SYS_preadv2 ? apply(::preadv2, a) : apply(::pwritev2, a);
    case SYS_io_submit:
        hand_over_submitted(static_cast<long>(a[1]), as<const iocb* const*>(a[2]));
        break;
    case SYS_execve: // not by apply(), whose state a child of vfork would leave to its parent
        return ::execve(as<const char*>(a[0]), as<char* const*>(a[1]), as<char* const*>(a[2]));
    case SYS_execveat:
        return ::execveat(static_cast<int>(a[0]), as<const char*>(a[1]), as<char* const*>(a[2]), as<char* const*>(a[3]),
                          static_cast<int>(a[4]));
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
    case SYS_io_uring_setup: {
        // A ring adds members to an epoll set, reads and writes, and the library does not see it (libuv from 1.45 on).
        const long ring = real::syscall(number, a[0], a[1]);
        if (ring >= 0) {
            const sys::ErrnoKept kept;
            lifecycle::leave_everything_to_the_kernel(Reason::past_library);
        }
        return ring;
    }
    case SYS_exit: // see pthread_exit()
        if (service::own_name() != 0 && sys::call(SYS_gettid) == sys::call(SYS_getpid)) {
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
