// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Bytes.
#include "rsockets/preload/route.hpp"
#include "rsockets/preload/wait.hpp"

#include <algorithm>
#include <array>
#include <climits>
#include <cstring>

using namespace preload;

// What a program that was compiled with _FORTIFY_SOURCE calls, and where it ends when its buffer is too small.
extern "C" [[noreturn]] void __chk_fail() noexcept;

PRELOAD_EXPORT ssize_t read(int fd, void* buffer, size_t size) {
    return route(
        fd, PRELOAD_CALLER, [&] { return real::read(fd, buffer, size); },
        [&](const Carrier& c) { return c.read(fd, buffer, size); });
}
PRELOAD_ALIAS(__read, read);

PRELOAD_EXPORT ssize_t write(int fd, const void* data, size_t size) {
    return route(
        fd, PRELOAD_CALLER, [&] { return real::write(fd, data, size); },
        [&](const Carrier& c) { return c.write(fd, data, size); });
}
PRELOAD_ALIAS(__write, write);

PRELOAD_EXPORT ssize_t readv(int fd, const struct iovec* parts, int count) {
    return route(
        fd, PRELOAD_CALLER, [&] { return real::readv(fd, parts, count); },
        [&](const Carrier& c) { return c.readv(fd, parts, count); });
}

PRELOAD_EXPORT ssize_t writev(int fd, const struct iovec* parts, int count) {
    return route(
        fd, PRELOAD_CALLER, [&] { return real::writev(fd, parts, count); },
        [&](const Carrier& c) { return c.writev(fd, parts, count); });
}

namespace {

// Of preadv2(2) and pwritev2(2) on a socket: no offset but -1, and RWF_NOWAIT.
bool bad_position(off64_t offset, int flags) {
    if (offset != -1) {
        errno = ESPIPE;
    } else if ((flags & ~(RWF_NOWAIT | RWF_HIPRI)) != 0) {
        errno = EOPNOTSUPP;
    } else {
        return false;
    }
    return true;
}

msghdr message_of(const iovec* parts, int count) {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts);
    message.msg_iovlen = static_cast<size_t>(std::max(count, 0));
    return message;
}

ssize_t read_at(int fd, const iovec* parts, int count, off64_t offset, int flags, const void* caller) {
    return route(
        fd, caller, [&] { return real::preadv2(fd, parts, count, offset, flags); },
        [&](const Carrier& c) -> ssize_t {
            if (bad_position(offset, flags)) {
                return -1;
            }
            if ((flags & RWF_NOWAIT) == 0) {
                return c.readv(fd, parts, count);
            }
            msghdr message = message_of(parts, count);
            return c.recvmsg(fd, &message, MSG_DONTWAIT);
        });
}

ssize_t write_at(int fd, const iovec* parts, int count, off64_t offset, int flags, const void* caller) {
    return route(
        fd, caller, [&] { return real::pwritev2(fd, parts, count, offset, flags); },
        [&](const Carrier& c) -> ssize_t {
            if (bad_position(offset, flags)) {
                return -1;
            }
            if ((flags & RWF_NOWAIT) == 0) {
                return c.writev(fd, parts, count);
            }
            const msghdr message = message_of(parts, count);
            return c.sendmsg(fd, &message, MSG_DONTWAIT);
        });
}

} // namespace

PRELOAD_EXPORT ssize_t preadv2(int fd, const struct iovec* parts, int count, off_t offset, int flags) {
    return read_at(fd, parts, count, offset, flags, PRELOAD_CALLER);
}

PRELOAD_EXPORT ssize_t preadv64v2(int fd, const struct iovec* parts, int count, off64_t offset, int flags) {
    return read_at(fd, parts, count, offset, flags, PRELOAD_CALLER);
}

PRELOAD_EXPORT ssize_t pwritev2(int fd, const struct iovec* parts, int count, off_t offset, int flags) {
    return write_at(fd, parts, count, offset, flags, PRELOAD_CALLER);
}

PRELOAD_EXPORT ssize_t pwritev64v2(int fd, const struct iovec* parts, int count, off64_t offset, int flags) {
    return write_at(fd, parts, count, offset, flags, PRELOAD_CALLER);
}

PRELOAD_EXPORT ssize_t recv(int fd, void* buffer, size_t size, int flags) {
    return route(
        fd, PRELOAD_CALLER, [&] { return real::recv(fd, buffer, size, flags); },
        [&](const Carrier& c) { return c.recv(fd, buffer, size, flags); });
}

PRELOAD_EXPORT ssize_t recvfrom(int fd, void* buffer, size_t size, int flags, struct sockaddr* from,
                                socklen_t* length) {
    return route(
        fd, PRELOAD_CALLER, [&] { return real::recvfrom(fd, buffer, size, flags, from, length); },
        [&](const Carrier& c) { return c.recvfrom(fd, buffer, size, flags, from, length); });
}

PRELOAD_EXPORT ssize_t recvmsg(int fd, struct msghdr* message, int flags) {
    return route(
        fd, PRELOAD_CALLER, [&] { return real::recvmsg(fd, message, flags); },
        [&](const Carrier& c) { return c.recvmsg(fd, message, flags); });
}

PRELOAD_EXPORT ssize_t send(int fd, const void* data, size_t size, int flags) {
    return route(
        fd, PRELOAD_CALLER, [&] { return real::send(fd, data, size, flags); },
        [&](const Carrier& c) { return c.send(fd, data, size, flags); });
}
PRELOAD_ALIAS(__send, send);

PRELOAD_EXPORT ssize_t sendto(int fd, const void* data, size_t size, int flags, const struct sockaddr* to,
                              socklen_t length) {
    return route(
        fd, PRELOAD_CALLER, [&] { return real::sendto(fd, data, size, flags, to, length); },
        [&](const Carrier& c) { return c.sendto(fd, data, size, flags, to, length); });
}

PRELOAD_EXPORT ssize_t sendmsg(int fd, const struct msghdr* message, int flags) {
    return route(
        fd, PRELOAD_CALLER, [&] { return real::sendmsg(fd, message, flags); },
        [&](const Carrier& c) { return c.sendmsg(fd, message, flags); });
}

namespace {

long long now() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1000000000LL * time.tv_sec + time.tv_nsec;
}

// As the kernel's: the time limit is looked at after each message, and an error after some were received waits for the
// next call, which a stream tells by itself.
int recv_messages(const Carrier& c, int fd, mmsghdr* messages, unsigned count, int flags, const timespec* timeout) {
    if (timeout != nullptr && (timeout->tv_sec < 0 || timeout->tv_nsec < 0 || timeout->tv_nsec >= 1000000000)) {
        errno = EINVAL;
        return -1;
    }
    const bool limited = timeout != nullptr && timeout->tv_sec <= longest_time;
    const long long end = limited ? now() + 1000000000LL * timeout->tv_sec + timeout->tv_nsec : LLONG_MAX;
    unsigned done = 0;
    while (done < std::min<unsigned>(count, UIO_MAXIOV)) {
        const ssize_t n = c.recvmsg(fd, &messages[done].msg_hdr, flags & ~MSG_WAITFORONE);
        if (n < 0) {
            return done != 0 ? static_cast<int>(done) : -1;
        }
        messages[done++].msg_len = static_cast<unsigned>(n);
        if ((flags & MSG_WAITFORONE) != 0) {
            flags |= MSG_DONTWAIT;
        }
        if (n == 0 || now() >= end) {
            break;
        }
    }
    return static_cast<int>(done);
}

int send_messages(const Carrier& c, int fd, mmsghdr* messages, unsigned count, int flags) {
    unsigned done = 0;
    while (done < std::min<unsigned>(count, UIO_MAXIOV)) {
        const ssize_t n = c.sendmsg(fd, &messages[done].msg_hdr, flags);
        if (n < 0) {
            return done != 0 ? static_cast<int>(done) : -1;
        }
        messages[done++].msg_len = static_cast<unsigned>(n);
    }
    return static_cast<int>(done);
}

} // namespace

PRELOAD_EXPORT int recvmmsg(int fd, struct mmsghdr* messages, unsigned count, int flags, struct timespec* timeout) {
    return route(
        fd, PRELOAD_CALLER, [&] { return real::recvmmsg(fd, messages, count, flags, timeout); },
        [&](const Carrier& c) { return recv_messages(c, fd, messages, count, flags, timeout); });
}

PRELOAD_EXPORT int sendmmsg(int fd, struct mmsghdr* messages, unsigned count, int flags) {
    return route(
        fd, PRELOAD_CALLER, [&] { return real::sendmmsg(fd, messages, count, flags); },
        [&](const Carrier& c) { return send_messages(c, fd, messages, count, flags); });
}

// What was read from a socket cannot be a file's pages, and the kernel says the same.
PRELOAD_EXPORT ssize_t sendfile(int fd, int in, off_t* offset, size_t count) noexcept {
    return route(
        fd, PRELOAD_CALLER,
        [&]() -> ssize_t {
            if (!table::plain(in)) {
                errno = EINVAL;
                return -1;
            }
            return real::sendfile(fd, in, offset, count);
        },
        [&](const Carrier& c) { return c.sendfile(fd, in, offset, count); });
}

static_assert(sizeof(off_t) == sizeof(off64_t));
PRELOAD_ALIAS(sendfile64, sendfile);

namespace {

constexpr size_t splice_piece = 65536;

bool waits(int fd, unsigned flags) {
    return (flags & SPLICE_F_NONBLOCK) == 0 && (real::fcntl(fd, F_GETFL, 0UL) & O_NONBLOCK) == 0;
}

// From a socket into a pipe. What the pipe has no room for must stay with the socket, so the pipe is asked first.
ssize_t splice_in(const Carrier& c, int from, int pipe, size_t count, unsigned flags) {
    std::array<char, splice_piece> piece;
    pollfd room{pipe, POLLOUT, 0};
    const int ready = real::poll(&room, 1UL, waits(pipe, flags) ? -1 : 0);
    if (ready <= 0) {
        errno = ready == 0 ? EAGAIN : errno;
        return -1;
    }
    int held = 0;
    (void)real::ioctl(pipe, static_cast<unsigned long>(FIONREAD), reinterpret_cast<unsigned long>(&held));
    const int size = real::fcntl(pipe, F_GETPIPE_SZ, 0UL);
    if (size < 0) {
        errno = EINVAL; // one of the two must be a pipe
        return -1;
    }
    const size_t fits = std::clamp<size_t>(static_cast<size_t>(std::max(size - held, PIPE_BUF)), 1, PIPE_BUF * 8UL);
    // SPLICE_F_NONBLOCK is about the pipe: a socket goes by its own flag.
    const ssize_t n = c.recv(from, piece.data(), std::min({count, piece.size(), fits}), 0);
    ssize_t written = 0;
    while (written < n) {
        const ssize_t part = real::write(pipe, piece.data() + written, static_cast<size_t>(n - written));
        if (part > 0) {
            written += part;
            continue;
        }
        pollfd again{pipe, POLLOUT, 0};
        if (part < 0 && errno != EINTR && (errno != EAGAIN || real::poll(&again, 1UL, -1) < 0)) {
            return written != 0 ? written : -1;
        }
    }
    return n;
}

// From a pipe to a socket. What the socket does not take must stay in the pipe: tee(2) looks without taking.
ssize_t splice_out(const Carrier& c, int pipe, int to, size_t count, unsigned flags) {
    std::array<char, splice_piece> piece;
    const int dont_wait = (flags & SPLICE_F_NONBLOCK) != 0 ? MSG_DONTWAIT : 0;
    pollfd bytes{pipe, POLLIN, 0};
    if (real::fcntl(pipe, F_GETPIPE_SZ, 0UL) < 0) {
        errno = EINVAL;
        return -1;
    }
    const int ready = real::poll(&bytes, 1UL, waits(pipe, flags) ? -1 : 0);
    if (ready <= 0) {
        errno = ready == 0 ? EAGAIN : errno;
        return -1;
    }
    int held = 0;
    (void)real::ioctl(pipe, static_cast<unsigned long>(FIONREAD), reinterpret_cast<unsigned long>(&held));
    if (held == 0) {
        return 0; // its end
    }
    int copy[2];
    if (real::pipe2(copy, O_CLOEXEC | O_NONBLOCK) != 0) {
        return -1;
    }
    ssize_t n = real::tee(pipe, copy[1], std::min(count, piece.size()), SPLICE_F_NONBLOCK);
    if (n > 0) {
        n = real::read(copy[0], piece.data(), static_cast<size_t>(n));
    }
    if (n > 0) {
        n = c.send(to, piece.data(), static_cast<size_t>(n), dont_wait | ((flags & SPLICE_F_MORE) != 0 ? MSG_MORE : 0));
    }
    if (n > 0) {
        (void)!real::read(pipe, piece.data(), static_cast<size_t>(n));
    }
    const int error = errno;
    real::close(copy[0]);
    real::close(copy[1]);
    errno = error;
    return n;
}

} // namespace

PRELOAD_EXPORT ssize_t splice(int from, off64_t* from_offset, int to, off64_t* to_offset, size_t count,
                              unsigned flags) {
    const void* caller = PRELOAD_CALLER;
    const auto kernel = [&] { return real::splice(from, from_offset, to, to_offset, count, flags); };
    if (table::plain(from) && table::plain(to)) [[likely]] {
        return kernel();
    }
    const bool in = !table::plain(from);
    if (!ours(in ? from : to, caller)) {
        return kernel();
    }
    if ((in && !table::plain(to)) || (in ? from_offset : to_offset) != nullptr) {
        errno = in && !table::plain(to) ? EINVAL : ESPIPE;
        return -1;
    }
    if (count == 0) {
        return 0;
    }
    const caller::Inside inside;
    return in ? splice_in(Carrier::loaded(), from, to, count, flags)
              : splice_out(Carrier::loaded(), from, to, count, flags);
}

PRELOAD_EXPORT ssize_t __read_chk(int fd, void* buffer, size_t size, size_t room) {
    if (size > room) {
        __chk_fail();
    }
    return route(
        fd, PRELOAD_CALLER, [&] { return real::read(fd, buffer, size); },
        [&](const Carrier& c) { return c.read(fd, buffer, size); });
}

PRELOAD_EXPORT ssize_t __recv_chk(int fd, void* buffer, size_t size, size_t room, int flags) {
    if (size > room) {
        __chk_fail();
    }
    return route(
        fd, PRELOAD_CALLER, [&] { return real::recv(fd, buffer, size, flags); },
        [&](const Carrier& c) { return c.recv(fd, buffer, size, flags); });
}

PRELOAD_EXPORT ssize_t __recvfrom_chk(int fd, void* buffer, size_t size, size_t room, int flags, struct sockaddr* from,
                                      socklen_t* length) {
    if (size > room) {
        __chk_fail();
    }
    return route(
        fd, PRELOAD_CALLER, [&] { return real::recvfrom(fd, buffer, size, flags, from, length); },
        [&](const Carrier& c) { return c.recvfrom(fd, buffer, size, flags, from, length); });
}

PRELOAD_EXPORT int shutdown(int fd, int how) noexcept {
    return route(
        fd, PRELOAD_CALLER, [&] { return real::shutdown(fd, how); },
        [&](const Carrier& c) { return c.shutdown(fd, how); });
}

PRELOAD_EXPORT int getsockname(int fd, struct sockaddr* address, socklen_t* length) noexcept {
    return route(
        fd, PRELOAD_CALLER, [&] { return real::getsockname(fd, address, length); },
        [&](const Carrier& c) { return c.getsockname(fd, address, length); });
}

PRELOAD_EXPORT int getpeername(int fd, struct sockaddr* address, socklen_t* length) noexcept {
    return route(
        fd, PRELOAD_CALLER, [&] { return real::getpeername(fd, address, length); },
        [&](const Carrier& c) { return c.getpeername(fd, address, length); });
}

PRELOAD_EXPORT int bind(int fd, const struct sockaddr* address, socklen_t length) noexcept {
    const void* caller = PRELOAD_CALLER;
    if (caller::SharingPort::now && caller::is_internal(caller)) {
        const int on = 1;
        (void)real::setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on));
    }
    return route(
        fd, caller,
        [&] {
            const int ret = real::bind(fd, address, length);
            if (Entry* entry = table::entry(fd); ret == 0 && entry != nullptr) {
                entry->unbound = false;
            }
            return ret;
        },
        [&](const Carrier& c) { return c.bind(fd, address, length); });
}

PRELOAD_EXPORT int getsockopt(int fd, int level, int name, void* value, socklen_t* length) noexcept {
    return route(
        fd, PRELOAD_CALLER, [&] { return real::getsockopt(fd, level, name, value, length); },
        [&](const Carrier& c) { return c.getsockopt(fd, level, name, value, length); });
}

// What is set while a connect may still fail, or on a listener, counts for the kernel's socket too.
PRELOAD_EXPORT int setsockopt(int fd, int level, int name, const void* value, socklen_t length) noexcept {
    return route(
        fd, PRELOAD_CALLER, [&] { return real::setsockopt(fd, level, name, value, length); },
        [&](const Carrier& c) {
            const int ret = c.setsockopt(fd, level, name, value, length);
            const Entry* entry = table::entry(fd);
            const int kernel = entry != nullptr ? entry->kernel.load() : -1;
            if (ret == 0 && kernel >= 0 && !(level == SOL_SOCKET && name == SO_REUSEADDR)) {
                (void)real::setsockopt(kernel, level, name, value, length);
            }
            return ret;
        });
}
