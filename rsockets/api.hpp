// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Helpers of the C entry points: find the object behind a descriptor, turn an error into errno, let no exception out.
#pragma once

#include <cerrno>
#include <csignal>
#include <exception>
#include <new>
#include <type_traits>

#include <fcntl.h>

#include "rsockets/call.hpp"
#include "rsockets/fd_table.hpp"
#include "rsockets/inherited.hpp"
#include "rsockets/library.hpp"
#include "rsockets/log.hpp"
#include "rsockets/socket.hpp"

// The calls that the header declares are defined as ofi_NAME and exported as NAME under our symbol version. Those that
// rdma-core has too are also exported under its symbol version, so that a program linked to rdma-core's library runs on
// this one when it is preloaded.
#define RSOCKET_API extern "C" __attribute__((visibility("default")))
#define RSOCKET_EXPORT(name)                                                                                           \
    static_assert(std::is_same_v<decltype(ofi_##name), decltype(name)>);                                               \
    __asm__(".symver ofi_" #name ", " #name "@@RSOCKET_OFI_1.0")
#define RSOCKET_EXPORT_AS_RDMACM(name)                                                                                 \
    RSOCKET_EXPORT(name);                                                                                              \
    RSOCKET_API __attribute__((alias("ofi_" #name))) decltype(name) ofi_##name##_as_rdmacm;                            \
    __asm__(".symver ofi_" #name "_as_rdmacm, " #name "@RDMACM_1.0")

namespace rsockets {

// Blocking calls are cancellation points, as in POSIX.
constexpr auto waits = Call::Kind::cancellation_point;

// Runs `body`, which returns a result or -errno, and sets errno. The only exception that passes is thread cancellation.
template <class Body> auto answer(Body&& body, Call::Kind kind = Call::Kind::plain) -> decltype(body()) {
    decltype(body()) ret = -ENOMEM;
    {
        const Call call(kind);
        ret = call.refusal();
        if (ret == 0) {
            try {
                ret = body();
            } catch (const std::bad_alloc&) {
                ret = -ENOMEM;
            } catch (const std::exception&) { // not `...`: the cancellation of the thread passes
                ret = -EIO;
            }
        }
    }
    if (ret < 0) {
        errno = static_cast<int>(-ret);
        return -1;
    }
    return ret;
}

// The error for a descriptor that is not one of our sockets.
inline int not_a_socket(int fd, const Use& use) {
    if (use.as<Inherited>() != nullptr) {
        log(Level::warn, "descriptor %d: a connection cannot be used in a child of the process that made it", fd);
        return -ECONNRESET;
    }
    return fcntl(fd, F_GETFD) < 0 ? -EBADF : -ENOTSOCK;
}

// Calls `body` with the socket behind `fd`.
template <class Body> auto with_socket(int fd, Body&& body, Call::Kind kind = Call::Kind::plain) {
    using Result = decltype(body(std::declval<Socket&>()));
    return answer(
        [&]() -> Result {
            const Use use = fd_table::find(fd);
            auto* socket = use.as<Socket>();
            return socket != nullptr ? body(*socket) : static_cast<Result>(not_a_socket(fd, use));
        },
        kind);
}

// The result of a sending call. SIGPIPE is raised after the end of the call, so that its handler may make calls.
inline ssize_t with_signal(ssize_t sent, int flags) {
    if (sent < 0 && errno == EPIPE && (flags & MSG_NOSIGNAL) == 0) {
        raise(SIGPIPE); // to this thread, as the kernel does
        errno = EPIPE;
    }
    return sent;
}

} // namespace rsockets
