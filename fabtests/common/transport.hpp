// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// One connected end, for programs that measure the same thing over a stream, over a bare core endpoint with writes that
// carry data, and over the kernel's sockets.
#pragma once

#include <memory>

#include "fabtests/common/fabric.hpp"
#include "fabtests/common/options.hpp"

namespace fabtests {

class Transport {
  public:
    virtual ~Transport() = default;

    // Sends `length` bytes as one transfer, and receives one of as many; the calls wait as the options say.
    virtual void send(const void* data, size_t length) = 0;
    virtual void recv(void* data, size_t length) = 0;
    // Until everything sent is out of the sender's hands.
    virtual void flush() {}
    // Ends the connection in order.
    virtual void close() {}
};

// What to ask fi_getinfo for, as the options say.
Request request_for(const Options& options);

// Listens and takes one connection, or connects, as the options say. `largest`: the longest transfer there will be.
std::unique_ptr<Transport> open_transport(const Options& options, size_t largest);

std::unique_ptr<Transport> open_stream(const Options& options);
std::unique_ptr<Transport> open_core(const Options& options, size_t largest);
std::unique_ptr<Transport> open_kernel(const Options& options);

} // namespace fabtests
