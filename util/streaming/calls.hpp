// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The calls that a test uses: rsockets, or the equivalent calls of kernel sockets.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>

namespace streaming {

struct Calls {
    const char* transport;
    int (*socket)(int domain, int type, int protocol);
    int (*bind)(int fd, const sockaddr* address, socklen_t length);
    int (*listen)(int fd, int backlog);
    int (*accept)(int fd, sockaddr* address, socklen_t* length);
    int (*connect)(int fd, const sockaddr* address, socklen_t length);
    int (*shutdown)(int fd, int how);
    int (*close)(int fd);
    ssize_t (*receive)(int fd, void* data, size_t size, int flags);
    ssize_t (*send)(int fd, const void* data, size_t size, int flags);
    int (*poll)(pollfd* descriptors, nfds_t count, int timeout_ms);
    int (*name)(int fd, sockaddr* address, socklen_t* length);
    int (*get_option)(int fd, int level, int name, void* value, socklen_t* length);
    int (*set_option)(int fd, int level, int name, const void* value, socklen_t length);
    int (*control)(int fd, int command, ...);
};

extern const Calls rsocket_calls;
extern const Calls kernel_calls;

} // namespace streaming
