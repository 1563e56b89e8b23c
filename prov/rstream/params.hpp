// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The FI_RSTREAM_* parameters. A new one is a line in the table in params.cpp and a member here.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "prov/rstream/core/properties.hpp"
#include "prov/rstream/stream/user_timeout.hpp"

namespace rstream {

// As FI_RSTREAM_CORE has it: separated by commas.
std::string list_of(const std::vector<std::string>& names);

struct Params {
    std::vector<std::string> cores = default_cores(); // in order of preference
    size_t send_buf_size = 32768;                     // bytes
    size_t recv_buf_size = 32768;                     // bytes
    size_t max_buf_size = 524288;                     // bytes; limit of buffer resizes; none if not above the size
    size_t shrink_timeout = 10000;                    // milliseconds; 0: buffers that have grown do not shrink
    bool send_buf_fixed = false;                      // the environment sets the size: no resize
    bool recv_buf_fixed = false;
    size_t tx_size = 384;              // operations
    size_t rx_size = 384;              // messages
    size_t linger = 3000;              // milliseconds
    size_t connect_timeout = 20000;    // milliseconds; 0: as long as the core waits
    size_t handshake_timeout = 1000;   // milliseconds
    size_t keepalive_idle = 0;         // milliseconds; 0 is off
    size_t keepalive_interval = 75000; // milliseconds
    size_t keepalive_count = 9;
    size_t user_timeout = default_user_timeout; // milliseconds; 0: as long as the core retransmits
    bool immediates = true;

    // Registers all parameters with libfabric; called once, when the provider is loaded.
    static void define();

    // Reads the environment. A value out of range is left at its default, with a warning in the log.
    static Params load();
};

} // namespace rstream
