// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Iomaps: calls that sockets do not have.
#include "rsockets/api.hpp"

#include <algorithm>
#include <climits>

#include <rdma/rsocket.h>

using namespace rsockets;

RSOCKET_API off_t ofi_riomap(int fd, void* buf, size_t len, int prot, int /*flags*/, off_t offset) {
    return with_socket(fd, [&](Socket& socket) -> off_t { return socket.map(buf, len, prot, offset); });
}

RSOCKET_API int ofi_riounmap(int fd, void* buf, size_t len) {
    return with_socket(
        fd, [&](Socket& socket) { return socket.unmap(buf, len); }, waits);
}

RSOCKET_API size_t ofi_riowrite(int fd, const void* buf, size_t count, off_t offset, int flags) {
    const auto write = [&](Socket& socket) -> ssize_t {
        return buf == nullptr && count != 0 ? -EFAULT
                                            : socket.write_map(buf, std::min<size_t>(count, SSIZE_MAX), offset, flags);
    };
    return static_cast<size_t>(with_signal(with_socket(fd, write, waits), flags));
}

RSOCKET_EXPORT_AS_RDMACM(riomap);
RSOCKET_EXPORT_AS_RDMACM(riounmap);
RSOCKET_EXPORT_AS_RDMACM(riowrite);
