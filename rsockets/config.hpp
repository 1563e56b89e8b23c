// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Default settings of sockets: built in, overridden by the administrator's files, overridden by the environment.
#pragma once

#include <cstddef>

namespace rsockets {

struct Config {
    // Up to which a buffer grows: FI_RSTREAM_MAX_BUF_SIZE of fi_rstream(7), unless it is set.
    static constexpr size_t grown_buffer = size_t{512} << 10;

    size_t send_buffer = 0; // bytes; 0: starts as small as the provider's do, and grows with its use
    size_t recv_buffer = 0;
    size_t send_queue = 384; // operations
    size_t recv_queue = 384;
    size_t inline_size = 64;  // bytes
    size_t iomap_size = 0;    // iomaps
    size_t polling_time = 10; // microseconds to spin before a thread sleeps
    size_t wake_up = 0;       // milliseconds after which a sleeping thread polls again; 0: never

    static Config load();
};

} // namespace rsockets
