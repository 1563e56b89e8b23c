// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Sending and receiving.
#include "rsockets/api.hpp"

#include <algorithm>
#include <climits>
#include <memory>

#include <rdma/rsocket.h>

using namespace rsockets;

namespace {

// 0, or the error of a list of segments. `too_many`: the error for more than IOV_MAX segments.
int invalid(const iovec* iov, size_t count, int too_many) {
    if (count > IOV_MAX) {
        return too_many;
    }
    if (iov == nullptr && count != 0) {
        return EFAULT;
    }
    size_t total = 0;
    for (size_t i = 0; i < count; ++i) {
        if (iov[i].iov_len > SSIZE_MAX - total) {
            return EINVAL;
        }
        total += iov[i].iov_len;
    }
    return 0;
}

// Whether bytes would go from or to nowhere. The kernel finds that last, when it copies them.
bool has_null(const iovec* iov, size_t count) {
    return std::any_of(iov, iov + count, [](const iovec& one) { return one.iov_base == nullptr && one.iov_len != 0; });
}

ssize_t send_on(int fd, const iovec* iov, size_t count, int flags, int too_many) {
    const auto send = [&](Socket& socket) -> ssize_t {
        if (const int error = invalid(iov, count, too_many); error != 0) {
            return -error;
        }
        if (has_null(iov, count)) {
            const ssize_t refused = socket.send(nullptr, 0, flags);
            return refused != 0 ? refused : -EFAULT;
        }
        return socket.send(iov, count, flags);
    };
    return with_signal(with_socket(fd, send, waits), flags);
}

// Whether the length of the message's name is invalid.
bool bad_name(const msghdr& message) {
    return message.msg_name != nullptr && static_cast<int>(message.msg_namelen) < 0;
}

// read(2) and readv(2) of no bytes return 0 in any state; recv(2) does not.
ssize_t recv_on(int fd, const iovec* iov, size_t count, int flags, int too_many) {
    return with_socket(
        fd,
        [&](Socket& socket) -> ssize_t {
            if (const int error = invalid(iov, count, too_many); error != 0) {
                return -error;
            }
            if ((flags & MSG_TRUNC) == 0 && has_null(iov, count)) { // discarding needs no memory
                const ssize_t there = socket.recv(iov, count, (flags & ~MSG_WAITALL) | MSG_PEEK | MSG_TRUNC);
                return there > 0 ? -EFAULT : there;
            }
            return socket.recv(iov, count, flags);
        },
        waits);
}

// Whether readv(2) or writev(2) has nothing to do, in any state of the socket.
bool is_empty(const iovec* iov, int count) {
    if (count < 0 || count > IOV_MAX || (iov == nullptr && count != 0)) {
        return false;
    }
    return std::all_of(iov, iov + count, [](const iovec& one) { return one.iov_len == 0; });
}

constexpr size_t file_piece = 65536;

// Sends a file from `at` on. The number of bytes sent, or -errno.
ssize_t send_file(Socket& socket, int in_fd, off_t at, size_t count) {
    const std::unique_ptr<char[]> buffer(new char[file_piece]);
    const uint64_t began = socket.disconnects();
    size_t sent = 0;
    while (sent < count) {
        const ssize_t n = pread(in_fd, buffer.get(), std::min(file_piece, count - sent), at + static_cast<off_t>(sent));
        if (n <= 0) {
            return sent != 0 ? static_cast<ssize_t>(sent) : n < 0 ? -errno : 0;
        }
        const iovec iov{buffer.get(), static_cast<size_t>(n)};
        const ssize_t taken = socket.send(&iov, 1, 0, began);
        if (taken < 0) {
            if (sent != 0) {
                socket.keep_for_next(taken, began);
            }
            return sent != 0 ? static_cast<ssize_t>(sent) : taken;
        }
        sent += static_cast<size_t>(taken);
        if (taken < n) {
            break;
        }
    }
    return static_cast<ssize_t>(sent);
}

} // namespace

RSOCKET_API ssize_t ofi_rsend(int fd, const void* buf, size_t len, int flags) {
    const iovec iov{const_cast<void*>(buf), std::min<size_t>(len, SSIZE_MAX)};
    return send_on(fd, &iov, 1, flags, EMSGSIZE);
}

// A connected stream ignores the address, as TCP does.
RSOCKET_API ssize_t ofi_rsendto(int fd, const void* buf, size_t len, int flags, const struct sockaddr*, socklen_t) {
    return ofi_rsend(fd, buf, len, flags);
}

RSOCKET_API ssize_t ofi_rsendmsg(int fd, const struct msghdr* msg, int flags) {
    if (msg == nullptr) {
        errno = EFAULT;
        return -1;
    }
    if (bad_name(*msg)) {
        return with_socket(fd, [](Socket&) -> ssize_t { return -EINVAL; });
    }
    return send_on(fd, msg->msg_iov, msg->msg_iovlen, flags, EMSGSIZE);
}

RSOCKET_API ssize_t ofi_rwrite(int fd, const void* buf, size_t count) { return ofi_rsend(fd, buf, count, 0); }

RSOCKET_API ssize_t ofi_rwritev(int fd, const struct iovec* iov, int iovcnt) {
    if (is_empty(iov, iovcnt)) {
        return with_socket(fd, [](Socket&) -> ssize_t { return 0; });
    }
    return send_on(fd, iov, iovcnt < 0 ? SIZE_MAX : static_cast<size_t>(iovcnt), 0, EINVAL);
}

RSOCKET_API ssize_t ofi_rrecv(int fd, void* buf, size_t len, int flags) {
    const iovec iov{buf, std::min<size_t>(len, SSIZE_MAX)};
    return recv_on(fd, &iov, 1, flags, EMSGSIZE);
}

RSOCKET_API ssize_t ofi_rrecvfrom(int fd, void* buf, size_t len, int flags, struct sockaddr* src_addr,
                                  socklen_t* addrlen) {
    const ssize_t ret = ofi_rrecv(fd, buf, len, flags);
    if (ret >= 0 && src_addr != nullptr) {
        if (addrlen == nullptr || static_cast<int>(*addrlen) < 0) { // checked after the bytes, as in the kernel
            errno = addrlen == nullptr ? EFAULT : EINVAL;
            return -1;
        }
        *addrlen = 0; // a stream reports no address here
    }
    return ret;
}

RSOCKET_API ssize_t ofi_rrecvmsg(int fd, struct msghdr* msg, int flags) {
    if (msg == nullptr) {
        errno = EFAULT;
        return -1;
    }
    if (bad_name(*msg)) {
        return with_socket(fd, [](Socket&) -> ssize_t { return -EINVAL; });
    }
    const ssize_t ret = recv_on(fd, msg->msg_iov, msg->msg_iovlen, flags, EMSGSIZE);
    if (ret >= 0) {
        if (msg->msg_name != nullptr) {
            msg->msg_namelen = 0; // a stream reports no address here
        }
        msg->msg_controllen = 0;
        msg->msg_flags = flags & MSG_CMSG_CLOEXEC;
    }
    return ret;
}

RSOCKET_API ssize_t ofi_rread(int fd, void* buf, size_t count) {
    if (count == 0) {
        return with_socket(fd, [](Socket&) -> ssize_t { return 0; });
    }
    return ofi_rrecv(fd, buf, count, 0);
}

RSOCKET_API ssize_t ofi_rreadv(int fd, const struct iovec* iov, int iovcnt) {
    if (is_empty(iov, iovcnt)) {
        return with_socket(fd, [](Socket&) -> ssize_t { return 0; });
    }
    return recv_on(fd, iov, iovcnt < 0 ? SIZE_MAX : static_cast<size_t>(iovcnt), 0, EINVAL);
}

RSOCKET_API ssize_t ofi_rsendfile(int fd, int in_fd, off_t* offset, size_t count) {
    const auto send = [&](Socket& socket) -> ssize_t {
        if (fd_table::find(in_fd)) {
            return -EINVAL; // the source must have pages, as a file has
        }
        const off_t at = offset != nullptr ? *offset : lseek(in_fd, 0, SEEK_CUR);
        if (at < 0) {
            return offset != nullptr ? -EINVAL : errno == ESPIPE ? -EINVAL : -errno;
        }
        const ssize_t sent = send_file(socket, in_fd, at, std::min<size_t>(count, INT_MAX));
        if (sent > 0 && offset != nullptr) {
            *offset = at + sent;
        } else if (sent > 0) {
            lseek(in_fd, at + sent, SEEK_SET); // it has just told its position
        }
        return sent;
    };
    return with_signal(with_socket(fd, send, waits), 0);
}

RSOCKET_EXPORT_AS_RDMACM(rsend);
RSOCKET_EXPORT_AS_RDMACM(rsendto);
RSOCKET_EXPORT_AS_RDMACM(rsendmsg);
RSOCKET_EXPORT_AS_RDMACM(rwrite);
RSOCKET_EXPORT_AS_RDMACM(rwritev);
RSOCKET_EXPORT_AS_RDMACM(rrecv);
RSOCKET_EXPORT_AS_RDMACM(rrecvfrom);
RSOCKET_EXPORT_AS_RDMACM(rrecvmsg);
RSOCKET_EXPORT_AS_RDMACM(rread);
RSOCKET_EXPORT_AS_RDMACM(rreadv);
RSOCKET_EXPORT(rsendfile);
