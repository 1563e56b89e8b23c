// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Urgent bytes of TCP (tcp(7)), by which the ends of a connection to another host find each other.
#pragma once

#include <cstdint>

#include <sys/socket.h>

#include "preload/base/system.hpp"

namespace preload::path {

// Takes the urgent byte that is the next one (SIOCATMARK), and none behind it, as a read that skips it could. By the
// only reader of the connection.
inline void take_urgent(int fd) {
    const auto set_in_line = [fd](int on) {
        return sys::call(SYS_setsockopt, fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof(on)) == 0;
    };
    if (uint8_t byte = 0; set_in_line(1)) {
        sys::recv(fd, &byte, 1, MSG_DONTWAIT);
        set_in_line(0);
    }
}

} // namespace preload::path
