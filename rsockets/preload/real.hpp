// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The calls below the shim: libc's, or those of whoever else stands between (a sanitizer). Each is looked up once, at
// the first call or when the shim is initialised, whichever is first: other objects' constructors come here before ours
// ran.
#pragma once

#include <atomic>
#include <cstdio>

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <unistd.h>

// Older programs call these, and the headers declare them no more.
extern "C" {
int __fxstat(int version, int fd, struct stat* out);
int __fxstat64(int version, int fd, struct stat64* out);
}

namespace preload::real {

void* look_up(const char* name);

template <class F> class Call;

template <class R, class... A> class Call<R(A...)> {
  public:
    constexpr explicit Call(const char* name) : name_(name) {}

    template <class... B> R operator()(B... arguments) {
        return reinterpret_cast<R (*)(A...)>(get())(static_cast<A>(arguments)...);
    }
    void prepare() { (void)get(); }

  private:
    void* get() {
        void* found = at_.load(std::memory_order_relaxed);
        if (found == nullptr) [[unlikely]] {
            found = look_up(name_);
            at_.store(found, std::memory_order_relaxed);
        }
        return found;
    }

    const char* const name_;
    std::atomic<void*> at_{nullptr};
};
template <class R, class... A> class Call<R(A...) noexcept> : public Call<R(A...)> { using Call<R(A...)>::Call; };
// With one argument behind those that have names: as much as any of these calls takes.
template <class R, class... A> class Call<R(A..., ...)> : public Call<R(A..., unsigned long)> {
    using Call<R(A..., unsigned long)>::Call;
};
template <class R, class... A> class Call<R(A..., ...) noexcept> : public Call<R(A..., unsigned long)> {
    using Call<R(A..., unsigned long)>::Call;
};

#define PRELOAD_CALLS(X)                                                                                               \
    X(socket)                                                                                                          \
    X(socketpair)                                                                                                      \
    X(listen)                                                                                                          \
    X(bind)                                                                                                            \
    X(accept)                                                                                                          \
    X(accept4)                                                                                                         \
    X(connect)                                                                                                         \
    X(shutdown)                                                                                                        \
    X(close)                                                                                                           \
    X(close_range)                                                                                                     \
    X(dup)                                                                                                             \
    X(dup2)                                                                                                            \
    X(dup3)                                                                                                            \
    X(fcntl)                                                                                                           \
    X(lseek)                                                                                                           \
    X(ioctl)                                                                                                           \
    X(read)                                                                                                            \
    X(write)                                                                                                           \
    X(readv)                                                                                                           \
    X(writev)                                                                                                          \
    X(preadv2)                                                                                                         \
    X(pwritev2)                                                                                                        \
    X(recv)                                                                                                            \
    X(recvfrom)                                                                                                        \
    X(recvmsg)                                                                                                         \
    X(recvmmsg)                                                                                                        \
    X(send)                                                                                                            \
    X(sendto)                                                                                                          \
    X(sendmsg)                                                                                                         \
    X(sendmmsg)                                                                                                        \
    X(sendfile)                                                                                                        \
    X(splice)                                                                                                          \
    X(tee)                                                                                                             \
    X(getsockname)                                                                                                     \
    X(getpeername)                                                                                                     \
    X(getsockopt)                                                                                                      \
    X(setsockopt)                                                                                                      \
    X(poll)                                                                                                            \
    X(ppoll)                                                                                                           \
    X(select)                                                                                                          \
    X(pselect)                                                                                                         \
    X(epoll_create1)                                                                                                   \
    X(epoll_create)                                                                                                    \
    X(epoll_ctl)                                                                                                       \
    X(epoll_wait)                                                                                                      \
    X(epoll_pwait)                                                                                                     \
    X(epoll_pwait2)                                                                                                    \
    X(eventfd)                                                                                                         \
    X(timerfd_create)                                                                                                  \
    X(pipe)                                                                                                            \
    X(pipe2)                                                                                                           \
    X(open)                                                                                                            \
    X(open64)                                                                                                          \
    X(fstat)                                                                                                           \
    X(fstat64)                                                                                                         \
    X(fstatat)                                                                                                         \
    X(fstatat64)                                                                                                       \
    X(statx)                                                                                                           \
    X(__fxstat)                                                                                                        \
    X(__fxstat64)                                                                                                      \
    X(fdopen)                                                                                                          \
    X(fileno)                                                                                                          \
    X(fileno_unlocked)                                                                                                 \
    X(vdprintf)                                                                                                        \
    X(getrlimit)                                                                                                       \
    X(setrlimit)                                                                                                       \
    X(prlimit)                                                                                                         \
    X(sysconf)                                                                                                         \
    X(getdtablesize)                                                                                                   \
    X(daemon)                                                                                                          \
    X(pthread_create)

// NOLINTNEXTLINE(bugprone-macro-parentheses): it is the name of an object
#define PRELOAD_DECLARE(name) inline constinit Call<decltype(::name)> name{#name};
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wignored-attributes"
PRELOAD_CALLS(PRELOAD_DECLARE)
#pragma GCC diagnostic pop
#undef PRELOAD_DECLARE

} // namespace preload::real
