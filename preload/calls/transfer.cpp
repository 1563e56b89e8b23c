// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Calls that move bytes.
#include "preload/calls/export.hpp"
#include "preload/calls/real.hpp"
#include "preload/connection/io.hpp"
#include "preload/connection/lifecycle.hpp"
#include "preload/connection/stream.hpp"
#include "preload/wait/epoll_set.hpp"

#include <algorithm>
#include <climits>
#include <cstring>

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

using namespace preload;

// Called by a program compiled with _FORTIFY_SOURCE when its buffer is too small; ends the program.
extern "C" [[noreturn]] void __chk_fail() noexcept;

namespace {

iovec part_of(const void* data, size_t size) { return {const_cast<void*>(data), std::min<size_t>(size, SSIZE_MAX)}; }

// Of a connection. The kernel refuses lists before anything else that are too long, or whose lengths are negative as
// ssize_t.
bool is_list(int fd, const iovec* parts, size_t count) {
    return table::connection(fd) != nullptr && count <= IOV_MAX && (parts != nullptr || count == 0) &&
           std::all_of(parts, parts + count, [](const iovec& part) { return part.iov_len <= SSIZE_MAX; });
}

bool has_bytes(const iovec* parts, int count) {
    return std::any_of(parts, parts + count, [](const iovec& part) { return part.iov_len != 0; });
}

// The kernel rejects it before anything else.
bool has_bad_name(const msghdr& message) {
    return message.msg_name != nullptr && static_cast<int>(message.msg_namelen) < 0;
}

// The other results of recvmsg(2) for a TCP socket.
void clear_extras(msghdr& message, int flags) {
    message.msg_namelen = message.msg_name != nullptr ? 0 : message.msg_namelen;
    message.msg_controllen = 0;
    message.msg_flags = flags & MSG_CMSG_CLOEXEC;
}

// TCP_INQ (net/ipv4/tcp.c, TCP_CM_INQ): how much is left to read. capacity: msg_controllen, before the call.
void report_queue(int fd, msghdr& message, size_t capacity) {
    Connection* c = table::connection(fd);
    if (c == nullptr || c->state.load()->inq == 0 || c->segment.load() == nullptr) [[likely]] {
        return;
    }
    const sys::ErrnoKept kept;
    const int queued = stream::inq_hint(*c, fd);
    if (message.msg_control == nullptr || capacity < CMSG_LEN(sizeof(queued))) {
        message.msg_flags |= MSG_CTRUNC;
        return;
    }
    message.msg_controllen = std::min(capacity, CMSG_SPACE(sizeof(queued)));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = IPPROTO_TCP;
    header->cmsg_type = TCP_CM_INQ;
    header->cmsg_len = CMSG_LEN(sizeof(queued));
    memcpy(CMSG_DATA(header), &queued, sizeof(queued));
}

// Descriptors that came with a message of a unix socket may be TCP connections.
void adopt_passed(const msghdr& message) {
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(const_cast<msghdr*>(&message), header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; ++i) {
            int fd = -1;
            memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(fd));
            lifecycle::adopt(fd);
        }
    }
}

// Connections that are about to be passed to another process, which must find their bytes in the kernel.
void hand_over_passed(const msghdr& message) {
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(const_cast<msghdr*>(&message), header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; ++i) {
            int fd = -1;
            memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(fd));
            if (Connection* c = table::connection(fd); c != nullptr) {
                const sys::ErrnoKept kept;
                stream::hand_over(*c, fd, Reason::passed);
            } else if (EpollSet* set = table::set(fd); set != nullptr) {
                set->leave_wakeup();
            }
        }
    }
}

ssize_t receive_message(int fd, msghdr* message, int flags) {
    const ssize_t n = io::receive(fd, message->msg_iov, message->msg_iovlen, flags, [&] {
        const ssize_t got = real::recvmsg(fd, message, flags);
        if (got >= 0 && message->msg_controllen != 0) {
            adopt_passed(*message);
        }
        return got;
    });
    return n;
}

bool careful(int fd) {
    const Connection* c = table::connection(fd);
    return c != nullptr && (c->state.load()->gate.load() & gate::careful) != 0;
}

ssize_t send_message(int fd, const msghdr* message, int flags) {
    if (message->msg_controllen != 0) {
        if (Connection* c = table::connection(fd); c != nullptr) {
            io::pin_for(*c, fd, Reason::option);
        } else {
            hand_over_passed(*message);
        }
    }
    return io::send(fd, message->msg_iov, message->msg_iovlen, flags,
                    [&] { return real::sendmsg(fd, message, flags); });
}

} // namespace

PRELOAD_EXPORT ssize_t read(int fd, void* buffer, size_t size) {
    if (size == 0) {
        return real::read(fd, buffer, size); // independent of the stream
    }
    const iovec part = part_of(buffer, size);
    return io::receive(fd, &part, 1, 0, [&] { return real::read(fd, buffer, size); });
}
PRELOAD_ALIAS(__read, read);

PRELOAD_EXPORT ssize_t write(int fd, const void* data, size_t size) {
    const iovec part = part_of(data, size);
    return io::send(fd, &part, 1, 0, [&] { return real::write(fd, data, size); });
}
PRELOAD_ALIAS(__write, write);

PRELOAD_EXPORT ssize_t readv(int fd, const struct iovec* parts, int count) {
    const auto kernel = [&] { return real::readv(fd, parts, count); };
    return is_list(fd, parts, static_cast<size_t>(count)) && has_bytes(parts, count)
               ? io::receive(fd, parts, static_cast<size_t>(count), 0, kernel)
               : kernel();
}

PRELOAD_EXPORT ssize_t writev(int fd, const struct iovec* parts, int count) {
    const auto kernel = [&] { return real::writev(fd, parts, count); };
    return is_list(fd, parts, static_cast<size_t>(count)) ? io::send(fd, parts, static_cast<size_t>(count), 0, kernel)
                                                          : kernel();
}

// preadv2(2) and pwritev2(2) on a socket: only offset -1, RWF_NOWAIT and RWF_HIPRI. The kernel rejects everything else.
PRELOAD_EXPORT ssize_t preadv2(int fd, const struct iovec* parts, int count, off_t offset, int flags) {
    const auto kernel = [&] { return real::preadv2(fd, parts, count, offset, flags); };
    return is_list(fd, parts, static_cast<size_t>(count)) && has_bytes(parts, count) && offset == -1 &&
                   (flags & ~(RWF_NOWAIT | RWF_HIPRI)) == 0
               ? io::receive(fd, parts, static_cast<size_t>(count), (flags & RWF_NOWAIT) != 0 ? MSG_DONTWAIT : 0,
                             kernel)
               : kernel();
}
PRELOAD_ALIAS(preadv64v2, preadv2);

PRELOAD_EXPORT ssize_t pwritev2(int fd, const struct iovec* parts, int count, off_t offset, int flags) {
    const auto kernel = [&] { return real::pwritev2(fd, parts, count, offset, flags); };
    return is_list(fd, parts, static_cast<size_t>(count)) && offset == -1 && (flags & ~(RWF_NOWAIT | RWF_HIPRI)) == 0
               ? io::send(fd, parts, static_cast<size_t>(count), (flags & RWF_NOWAIT) != 0 ? MSG_DONTWAIT : 0, kernel)
               : kernel();
}
PRELOAD_ALIAS(pwritev64v2, pwritev2);

PRELOAD_EXPORT ssize_t recv(int fd, void* buffer, size_t size, int flags) {
    const iovec part = part_of(buffer, size);
    return io::receive(fd, &part, 1, flags, [&] { return real::recv(fd, buffer, size, flags); });
}

PRELOAD_EXPORT ssize_t recvfrom(int fd, void* buffer, size_t size, int flags, struct sockaddr* from,
                                socklen_t* length) {
    const iovec part = part_of(buffer, size);
    const ssize_t n =
        io::receive(fd, &part, 1, flags, [&] { return real::recvfrom(fd, buffer, size, flags, from, length); });
    if (n >= 0 && from != nullptr && careful(fd)) { // like the kernel, after the bytes
        if (length == nullptr || static_cast<int>(*length) < 0) {
            errno = length == nullptr ? EFAULT : EINVAL;
            return -1;
        }
        *length = 0;
    }
    return n;
}

PRELOAD_EXPORT ssize_t recvmsg(int fd, struct msghdr* message, int flags) {
    if (message == nullptr || message->msg_iovlen > IOV_MAX || has_bad_name(*message) ||
        (table::connection(fd) != nullptr && !is_list(fd, message->msg_iov, message->msg_iovlen))) {
        return real::recvmsg(fd, message, flags);
    }
    const size_t capacity = message->msg_controllen;
    if (Connection* c = capacity != 0 ? table::connection(fd) : nullptr;
        c != nullptr && c->state.load()->timestamp != 0) {
        io::pin_for(*c, fd, Reason::option); // only the kernel has the time of arrival
    }
    const ssize_t n = receive_message(fd, message, flags);
    if (n >= 0 && careful(fd)) {
        clear_extras(*message, flags);
        report_queue(fd, *message, capacity);
    }
    return n;
}

PRELOAD_EXPORT ssize_t send(int fd, const void* data, size_t size, int flags) {
    const iovec part = part_of(data, size);
    return io::send(fd, &part, 1, flags, [&] { return real::send(fd, data, size, flags); });
}
PRELOAD_ALIAS(__send, send);

PRELOAD_EXPORT ssize_t sendto(int fd, const void* data, size_t size, int flags, const struct sockaddr* to,
                              socklen_t length) {
    const iovec part = part_of(data, size);
    return io::send(fd, &part, 1, flags, [&] { return real::sendto(fd, data, size, flags, to, length); });
}

PRELOAD_EXPORT ssize_t sendmsg(int fd, const struct msghdr* message, int flags) {
    if (message == nullptr || message->msg_iovlen > IOV_MAX || has_bad_name(*message) ||
        (table::connection(fd) != nullptr && !is_list(fd, message->msg_iov, message->msg_iovlen))) {
        return real::sendmsg(fd, message, flags);
    }
    return send_message(fd, message, flags);
}

// The timeout is checked after each message, as in the kernel. An error after the first message is not reported, unlike
// in the kernel, unless the next call meets it again: a reset is then the end of the stream.
PRELOAD_EXPORT int recvmmsg(int fd, struct mmsghdr* messages, unsigned count, int flags, struct timespec* timeout) {
    if (table::connection(fd) == nullptr ||
        (timeout != nullptr && (timeout->tv_sec < 0 || timeout->tv_nsec < 0 || timeout->tv_nsec >= 1000000000))) {
        const int got = real::recvmmsg(fd, messages, count, flags, timeout);
        for (int i = 0; i < got; ++i) {
            if (messages[i].msg_hdr.msg_controllen != 0) {
                adopt_passed(messages[i].msg_hdr);
            }
        }
        return got;
    }
    constexpr time_t max_seconds = 1000000000;
    const bool limited = timeout != nullptr && timeout->tv_sec < max_seconds;
    const uint64_t end = limited ? sys::now_ns() + 1000000000ULL * static_cast<uint64_t>(timeout->tv_sec) +
                                       static_cast<uint64_t>(timeout->tv_nsec)
                                 : UINT64_MAX;
    unsigned done = 0;
    while (done < std::min<unsigned>(count, IOV_MAX)) {
        const ssize_t n = recvmsg(fd, &messages[done].msg_hdr, flags & ~MSG_WAITFORONE);
        if (n < 0) {
            return done != 0 ? static_cast<int>(done) : -1;
        }
        messages[done++].msg_len = static_cast<unsigned>(n);
        flags |= (flags & MSG_WAITFORONE) != 0 ? MSG_DONTWAIT : 0;
        if (sys::now_ns() >= end) { // at the end of the stream, each has no bytes
            break;
        }
    }
    return static_cast<int>(done);
}

PRELOAD_EXPORT int sendmmsg(int fd, struct mmsghdr* messages, unsigned count, int flags) {
    if (table::connection(fd) == nullptr) {
        for (unsigned i = 0; messages != nullptr && i < count; ++i) {
            if (messages[i].msg_hdr.msg_controllen != 0) {
                hand_over_passed(messages[i].msg_hdr);
            }
        }
        return real::sendmmsg(fd, messages, count, flags);
    }
    unsigned done = 0;
    while (done < std::min<unsigned>(count, IOV_MAX)) {
        const ssize_t n = sendmsg(fd, &messages[done].msg_hdr, flags);
        if (n < 0) {
            return done != 0 ? static_cast<int>(done) : -1;
        }
        const msghdr& sent = messages[done].msg_hdr;
        messages[done++].msg_len = static_cast<unsigned>(n);
        if (static_cast<uint64_t>(n) != Parts(sent.msg_iov, sent.msg_iovlen).size()) {
            break; // as the kernel: the next one does not follow on half a message
        }
    }
    return static_cast<int>(done);
}

PRELOAD_EXPORT ssize_t sendfile(int fd, int in, off_t* offset, size_t count) noexcept {
    if (Connection* source = table::connection(in); source != nullptr) {
        io::pin_for(*source, in, Reason::spliced); // EINVAL, as without the library
    }
    Connection* c = table::connection(fd);
    const auto kernel = [&] { return real::sendfile(fd, in, offset, count); };
    if (c == nullptr) {
        return kernel();
    }
    return io::move<false>(
        c, fd, 0, [&](Connection& found) { return io::send_file_careful(found, fd, in, offset, count); }, kernel);
}
static_assert(sizeof(off_t) == sizeof(off64_t));
PRELOAD_ALIAS(sendfile64, sendfile);

PRELOAD_EXPORT ssize_t __read_chk(int fd, void* buffer, size_t size, size_t capacity) {
    return size > capacity ? (__chk_fail(), -1) : read(fd, buffer, size);
}
PRELOAD_EXPORT ssize_t __recv_chk(int fd, void* buffer, size_t size, size_t capacity, int flags) {
    return size > capacity ? (__chk_fail(), -1) : recv(fd, buffer, size, flags);
}
PRELOAD_EXPORT ssize_t __recvfrom_chk(int fd, void* buffer, size_t size, size_t capacity, int flags,
                                      struct sockaddr* from, socklen_t* length) {
    return size > capacity ? (__chk_fail(), -1) : recvfrom(fd, buffer, size, flags, from, length);
}
