// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Creating, naming, connecting and closing sockets; their options.
#include "rsockets/api.hpp"

#include <cstdarg>

#include <netinet/in.h>
#include <rdma/rsocket.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

#include "base/descriptor.hpp"
#include "rsockets/epoll_set.hpp"
#include "rsockets/library.hpp"

using namespace rsockets;

namespace {

constexpr int type_mask = 0xf; // of socket(2): the type without its flags
constexpr int type_flags = SOCK_NONBLOCK | SOCK_CLOEXEC;
constexpr int last_type = SOCK_PACKET;

// 0, or the kernel's error for a socket without a protocol.
int unsupported(int domain, int type, int protocol) {
    if ((type & ~type_mask & ~type_flags) != 0 || (type & type_mask) > last_type) {
        return EINVAL;
    }
    if (domain != AF_INET && domain != AF_INET6) {
        return EAFNOSUPPORT;
    }
    if (protocol < 0 || protocol >= IPPROTO_MAX) {
        return EINVAL;
    }
    if ((type & type_mask) != SOCK_STREAM) {
        return ESOCKTNOSUPPORT;
    }
    return protocol != 0 && protocol != IPPROTO_TCP ? EPROTONOSUPPORT : 0;
}

// Creates a descriptor for an object; `set_up` may fail. The descriptor, or -errno.
template <class SetUp> int give_number(const Ref<Object>& object, int flags, SetUp&& set_up) {
    const int fd = epoll_create1((flags & SOCK_CLOEXEC) != 0 ? EPOLL_CLOEXEC : 0);
    if (fd < 0) {
        return -errno;
    }
    if (!set_up(fd) || !fd_table::put(fd, object)) {
        ::close(fd);
        return -ENOMEM;
    }
    return fd;
}

int accept_on(int fd, sockaddr* address, socklen_t* length, int flags) {
    return with_socket(
        fd,
        [&](Socket& socket) {
            if ((flags & ~type_flags) != 0) {
                return -EINVAL;
            }
            Ref<Socket> accepted;
            if (const int ret = socket.accept((flags & SOCK_NONBLOCK) != 0, accepted); ret != 0) {
                // The kernel allocates a descriptor before it takes a connection.
                return ret == -EAGAIN && !base::Descriptor(dup(fd)).open() ? -errno : ret;
            }
            const int number =
                give_number(Ref<Object>(accepted.get()), flags, [&](int made) { return accepted->show_in(made); });
            if (number >= 0) {
                accepted->set_number(number);
            }
            if (number < 0) {
                socket.put_back(accepted); // until a descriptor is available
                return number;
            }
            if (address != nullptr) {
                const int error = length == nullptr ? -EFAULT : accepted->came_from(address, length);
                if (error == -EFAULT || error == -EINVAL) {
                    const Use gone = fd_table::take(number); // first: the descriptor may be reused after the close
                    ::close(number);
                    return error;
                }
            }
            return number;
        },
        waits);
}

// Assigns the object to `number`, a new duplicate of its descriptor. The descriptor, or -errno.
int share(const Ref<Object>& object, int number) {
    if (number < 0) {
        return -errno;
    }
    if (!fd_table::put(number, object)) {
        ::close(number);
        return -ENOMEM;
    }
    return number;
}

} // namespace

RSOCKET_API int ofi_rsocket(int domain, int type, int protocol) {
    return answer([&] {
        if (const int error = unsupported(domain, type, protocol); error != 0) {
            return -error;
        }
        const auto made = Ref<Socket>::adopt(new Socket(Library::get(), domain, (type & SOCK_NONBLOCK) != 0));
        return give_number(Ref<Object>(made.get()), type, [&](int fd) {
            made->set_number(fd);
            return true;
        });
    });
}

RSOCKET_API int ofi_rbind(int fd, const struct sockaddr* addr, socklen_t addrlen) {
    return with_socket(fd, [&](Socket& socket) { return socket.bind(addr, addrlen); });
}

RSOCKET_API int ofi_rlisten(int fd, int backlog) {
    return with_socket(fd, [&](Socket& socket) { return socket.listen(fd, backlog); });
}

RSOCKET_API int ofi_raccept(int fd, struct sockaddr* addr, socklen_t* addrlen) {
    return accept_on(fd, addr, addrlen, 0);
}

RSOCKET_API int ofi_raccept4(int fd, struct sockaddr* addr, socklen_t* addrlen, int flags) {
    return accept_on(fd, addr, addrlen, flags);
}

RSOCKET_API int ofi_rconnect(int fd, const struct sockaddr* addr, socklen_t addrlen) {
    return with_socket(
        fd, [&](Socket& socket) { return socket.connect(fd, addr, addrlen); }, waits);
}

RSOCKET_API int ofi_rshutdown(int fd, int how) {
    return with_socket(fd, [&](Socket& socket) { return socket.shutdown(how); });
}

RSOCKET_API int ofi_rclose(int fd) {
    if (Call::exiting()) { // all sockets are closed by then, and objects are kept
        return fd_table::find(fd) ? ::close(fd) : (errno = EBADF, -1);
    }
    return answer(
        [&] {
            const Use use = fd_table::take(fd);
            if (!use) {
                return fcntl(fd, F_GETFD) < 0 ? -EBADF : -ENOTSOCK;
            }
            ::close(fd); // another thread may get the descriptor from here on
            return 0;
        },
        waits);
}

RSOCKET_API int ofi_rgetpeername(int fd, struct sockaddr* addr, socklen_t* addrlen) {
    return with_socket(fd, [&](Socket& socket) { return socket.peer(addr, addrlen); });
}

RSOCKET_API int ofi_rgetsockname(int fd, struct sockaddr* addr, socklen_t* addrlen) {
    return with_socket(fd, [&](Socket& socket) { return socket.name(addr, addrlen); });
}

RSOCKET_API int ofi_rsetsockopt(int fd, int level, int optname, const void* optval, socklen_t optlen) {
    return with_socket(fd, [&](Socket& socket) { return socket.set_option(level, optname, optval, optlen); });
}

RSOCKET_API int ofi_rgetsockopt(int fd, int level, int optname, void* optval, socklen_t* optlen) {
    return with_socket(fd, [&](Socket& socket) { return socket.get_option(level, optname, optval, optlen); });
}

RSOCKET_API int ofi_rdup(int fd) {
    return answer([&] {
        const Use use = fd_table::find(fd);
        return use ? share(use.ref(), dup(fd)) : not_a_socket(fd, use);
    });
}

RSOCKET_API int ofi_rdup2(int fd, int onto) {
    return answer([&] {
        const Use use = fd_table::find(fd);
        if (!use) {
            return not_a_socket(fd, use);
        }
        if (fd == onto) {
            return onto;
        }
        return share(use.ref(), dup2(fd, onto)); // `onto` is one object or the other at any time, or stays what it is
    });
}

RSOCKET_API int ofi_rfcntl(int fd, int cmd, ...) {
    va_list args;
    va_start(args, cmd);
    const long arg = va_arg(args, long); // as the kernel reads it, regardless of its type
    va_end(args);
    return answer([&] {
        const Use use = fd_table::find(fd);
        if (!use) {
            return not_a_socket(fd, use);
        }
        auto* socket = use.as<Socket>();
        switch (cmd) {
        case F_GETFL:
            return O_RDWR | (socket != nullptr && socket->nonblocking() ? O_NONBLOCK : 0);
        case F_SETFL:
            if (socket != nullptr) {
                socket->set_nonblocking((arg & O_NONBLOCK) != 0);
            }
            return 0;
        case F_DUPFD:
        case F_DUPFD_CLOEXEC:
            return share(use.ref(), fcntl(fd, cmd, arg));
        default: {
            const int ret = fcntl(fd, cmd, arg);
            return ret < 0 ? -errno : ret;
        }
        }
    });
}

RSOCKET_API int ofi_rioctl(int fd, unsigned long request, ...) {
    va_list args;
    va_start(args, request);
    int* value = va_arg(args, int*);
    va_end(args);
    return with_socket(fd, [&](Socket& socket) { return socket.control(request, value); });
}

RSOCKET_EXPORT_AS_RDMACM(rsocket);
RSOCKET_EXPORT_AS_RDMACM(rbind);
RSOCKET_EXPORT_AS_RDMACM(rlisten);
RSOCKET_EXPORT_AS_RDMACM(raccept);
RSOCKET_EXPORT(raccept4);
RSOCKET_EXPORT_AS_RDMACM(rconnect);
RSOCKET_EXPORT_AS_RDMACM(rshutdown);
RSOCKET_EXPORT_AS_RDMACM(rclose);
RSOCKET_EXPORT_AS_RDMACM(rgetpeername);
RSOCKET_EXPORT_AS_RDMACM(rgetsockname);
RSOCKET_EXPORT_AS_RDMACM(rsetsockopt);
RSOCKET_EXPORT_AS_RDMACM(rgetsockopt);
RSOCKET_EXPORT(rdup);
RSOCKET_EXPORT(rdup2);
RSOCKET_EXPORT_AS_RDMACM(rfcntl);
RSOCKET_EXPORT(rioctl);
