// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The seam between the calls of C and the objects: how a number becomes one, how an error becomes errno, and that no
// exception leaves.
#pragma once

#include <cerrno>
#include <new>

#include <fcntl.h>

#include "rsockets/fd_table.hpp"
#include "rsockets/inherited.hpp"
#include "rsockets/log.hpp"
#include "rsockets/socket.hpp"

// What the header declares is exported; all else is hidden.
#define RSOCKET_API extern "C" __attribute__((visibility("default")))

namespace rsockets {

// What a body returns: a result, or -errno.
template <class Body> auto answer(Body&& body) noexcept -> decltype(body()) {
    decltype(body()) ret = -ENOMEM;
    try {
        ret = body();
    } catch (const std::bad_alloc&) {
        ret = -ENOMEM;
    } catch (...) {
        ret = -EIO;
    }
    if (ret < 0) {
        errno = static_cast<int>(-ret);
        return -1;
    }
    return ret;
}

// Why a number is not that of a socket of ours.
inline int not_a_socket(int fd, const Use& use) {
    if (use.as<Inherited>() != nullptr) {
        log(Level::warn, "descriptor %d: a connection cannot be used in a child of the process that made it", fd);
        return -ECONNRESET;
    }
    return fcntl(fd, F_GETFD) < 0 ? -EBADF : -ENOTSOCK;
}

// Calls `body` with the socket of a number.
template <class Body> auto with_socket(int fd, Body&& body) noexcept {
    using Result = decltype(body(std::declval<Socket&>()));
    return answer([&]() -> Result {
        const Use use = fd_table::find(fd);
        auto* socket = use.as<Socket>();
        return socket != nullptr ? body(*socket) : static_cast<Result>(not_a_socket(fd, use));
    });
}

} // namespace rsockets
