// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// One connected end, for programs that run the same measurement over a stream, over a bare core endpoint with writes
// that carry data, and over kernel sockets.
#pragma once

#include <memory>

#include <netdb.h>

#include "fabtests/common/fabric.hpp"
#include "fabtests/common/options.hpp"

namespace fabtests {

class Transport {
  public:
    virtual ~Transport() = default;

    // Sends `length` bytes as one transfer, and receives one of the same length; the calls wait as the options specify.
    virtual void send(const void* data, size_t length) = 0;
    virtual void recv(void* data, size_t length) = 0;
    // Waits until the sender has handed over everything.
    virtual void flush() {}
    // Ends the connection cleanly.
    virtual void close() {}
};

// Of a kernel socket: the server's address, for a server the one where it listens.
using AddressInfo = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;
AddressInfo resolve(const Options& options);

// Parameters for fi_getinfo, from the options.
Request request_for(const Options& options);

// Listens and accepts one connection, or connects, as the options specify. `largest`: the maximum size of a transfer.
std::unique_ptr<Transport> open_transport(const Options& options, size_t largest);

std::unique_ptr<Transport> open_stream(const Options& options);
std::unique_ptr<Transport> open_core(const Options& options, size_t largest);
std::unique_ptr<Transport> open_kernel(const Options& options);

} // namespace fabtests
