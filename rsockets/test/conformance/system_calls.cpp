// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The kernel's sockets by system calls, past libc and whatever is preloaded before it.
#include "rsockets/test/conformance/conformance.hpp"

#include <csignal>
#include <cstdarg>

#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace conformance {

namespace {

// libc's, since a preloaded library may have a syscall() of its own.
using SystemCall = long (*)(long, ...);
const SystemCall syscall_of_libc =
    reinterpret_cast<SystemCall>(dlsym(dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD), "syscall"));

int call_socket(int domain, int type, int protocol) {
    return static_cast<int>(syscall_of_libc(SYS_socket, domain, type, protocol));
}
int call_bind(int fd, const sockaddr* address, socklen_t length) {
    return static_cast<int>(syscall_of_libc(SYS_bind, fd, address, length));
}
int call_listen(int fd, int backlog) { return static_cast<int>(syscall_of_libc(SYS_listen, fd, backlog)); }
int call_accept4(int fd, sockaddr* address, socklen_t* length, int flags) {
    return static_cast<int>(syscall_of_libc(SYS_accept4, fd, address, length, flags));
}
int call_accept(int fd, sockaddr* address, socklen_t* length) { return call_accept4(fd, address, length, 0); }
int call_connect(int fd, const sockaddr* address, socklen_t length) {
    return static_cast<int>(syscall_of_libc(SYS_connect, fd, address, length));
}
int call_shutdown(int fd, int how) { return static_cast<int>(syscall_of_libc(SYS_shutdown, fd, how)); }
int call_close(int fd) { return static_cast<int>(syscall_of_libc(SYS_close, fd)); }
ssize_t call_recvfrom(int fd, void* buffer, size_t size, int flags, sockaddr* from, socklen_t* length) {
    return syscall_of_libc(SYS_recvfrom, fd, buffer, size, flags, from, length);
}
ssize_t call_recv(int fd, void* buffer, size_t size, int flags) {
    return call_recvfrom(fd, buffer, size, flags, nullptr, nullptr);
}
ssize_t call_recvmsg(int fd, msghdr* message, int flags) { return syscall_of_libc(SYS_recvmsg, fd, message, flags); }
ssize_t call_sendto(int fd, const void* data, size_t size, int flags, const sockaddr* to, socklen_t length) {
    return syscall_of_libc(SYS_sendto, fd, data, size, flags, to, length);
}
ssize_t call_send(int fd, const void* data, size_t size, int flags) {
    return call_sendto(fd, data, size, flags, nullptr, 0);
}
ssize_t call_sendmsg(int fd, const msghdr* message, int flags) {
    return syscall_of_libc(SYS_sendmsg, fd, message, flags);
}
ssize_t call_read(int fd, void* buffer, size_t size) { return syscall_of_libc(SYS_read, fd, buffer, size); }
ssize_t call_readv(int fd, const iovec* parts, int count) { return syscall_of_libc(SYS_readv, fd, parts, count); }
ssize_t call_write(int fd, const void* data, size_t size) { return syscall_of_libc(SYS_write, fd, data, size); }
ssize_t call_writev(int fd, const iovec* parts, int count) { return syscall_of_libc(SYS_writev, fd, parts, count); }
ssize_t call_sendfile(int fd, int in, off_t* offset, size_t count) {
    return syscall_of_libc(SYS_sendfile, fd, in, offset, count);
}

// The kernel writes into a time limit what is left of it; libc does not let that through.
constexpr size_t mask_size = _NSIG / 8;
int call_ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask) {
    timespec copy = timeout != nullptr ? *timeout : timespec{};
    return static_cast<int>(
        syscall_of_libc(SYS_ppoll, fds, count, timeout != nullptr ? &copy : nullptr, mask, mask_size));
}
int call_poll(pollfd* fds, nfds_t count, int timeout) {
    const timespec limit{timeout / 1000, long{timeout % 1000} * 1000000};
    return call_ppoll(fds, count, timeout >= 0 ? &limit : nullptr, nullptr);
}
int select_with(int count, fd_set* in, fd_set* out, fd_set* except, timespec* timeout, const sigset_t* mask) {
    struct {
        const sigset_t* mask;
        size_t size;
    } signals{mask, mask_size};
    return static_cast<int>(syscall_of_libc(SYS_pselect6, count, in, out, except, timeout, &signals));
}
int call_select(int count, fd_set* in, fd_set* out, fd_set* except, timeval* timeout) {
    timespec limit{};
    if (timeout != nullptr) {
        limit = {timeout->tv_sec, timeout->tv_usec * 1000};
    }
    const int ret = select_with(count, in, out, except, timeout != nullptr ? &limit : nullptr, nullptr);
    if (timeout != nullptr) {
        *timeout = {limit.tv_sec, limit.tv_nsec / 1000};
    }
    return ret;
}
int call_pselect(int count, fd_set* in, fd_set* out, fd_set* except, const timespec* timeout, const sigset_t* mask) {
    timespec copy = timeout != nullptr ? *timeout : timespec{};
    return select_with(count, in, out, except, timeout != nullptr ? &copy : nullptr, mask);
}

int call_epoll_create(int flags) { return static_cast<int>(syscall_of_libc(SYS_epoll_create1, flags)); }
int call_epoll_ctl(int set, int operation, int fd, epoll_event* event) {
    return static_cast<int>(syscall_of_libc(SYS_epoll_ctl, set, operation, fd, event));
}
int call_epoll_wait(int set, epoll_event* events, int most, int timeout) {
    return static_cast<int>(syscall_of_libc(SYS_epoll_pwait, set, events, most, timeout, nullptr, mask_size));
}
int call_getpeername(int fd, sockaddr* address, socklen_t* length) {
    return static_cast<int>(syscall_of_libc(SYS_getpeername, fd, address, length));
}
int call_getsockname(int fd, sockaddr* address, socklen_t* length) {
    return static_cast<int>(syscall_of_libc(SYS_getsockname, fd, address, length));
}
int call_setsockopt(int fd, int level, int name, const void* value, socklen_t length) {
    return static_cast<int>(syscall_of_libc(SYS_setsockopt, fd, level, name, value, length));
}
int call_getsockopt(int fd, int level, int name, void* value, socklen_t* length) {
    return static_cast<int>(syscall_of_libc(SYS_getsockopt, fd, level, name, value, length));
}
int call_fcntl(int fd, int command, ...) {
    va_list arguments;
    va_start(arguments, command);
    const auto argument = va_arg(arguments, unsigned long);
    va_end(arguments);
    return static_cast<int>(syscall_of_libc(SYS_fcntl, fd, command, argument));
}
int call_ioctl(int fd, unsigned long request, ...) {
    va_list arguments;
    va_start(arguments, request);
    const auto argument = va_arg(arguments, unsigned long);
    va_end(arguments);
    return static_cast<int>(syscall_of_libc(SYS_ioctl, fd, request, argument));
}
int call_dup(int fd) { return static_cast<int>(syscall_of_libc(SYS_dup, fd)); }
int call_dup2(int fd, int onto) {
    return fd == onto && call_fcntl(fd, F_GETFD) >= 0 ? onto : static_cast<int>(syscall_of_libc(SYS_dup3, fd, onto, 0));
}

} // namespace

const Api system_calls = {
    "kernel",          call_socket,    call_bind,       call_listen,      call_accept,      call_accept4,
    call_connect,      call_shutdown,  call_close,      call_recv,        call_recvfrom,    call_recvmsg,
    call_send,         call_sendto,    call_sendmsg,    call_read,        call_readv,       call_write,
    call_writev,       call_sendfile,  call_poll,       call_ppoll,       call_select,      call_pselect,
    call_epoll_create, call_epoll_ctl, call_epoll_wait, call_getpeername, call_getsockname, call_setsockopt,
    call_getsockopt,   call_fcntl,     call_ioctl,      call_dup,         call_dup2,
};

} // namespace conformance
