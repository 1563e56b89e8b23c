// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/streaming/calls.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <rdma/rsocket.h>

namespace streaming {

const Calls rsocket_calls{"rsocket", rsocket, rbind, rlisten,      raccept,     rconnect,    rshutdown, rclose,
                          rrecv,     rsend,   rpoll, rgetsockname, rgetsockopt, rsetsockopt, rfcntl};
const Calls kernel_calls{"kernel", ::socket, ::bind, ::listen,      ::accept,     ::connect,    ::shutdown, ::close,
                         ::recv,   ::send,   ::poll, ::getsockname, ::getsockopt, ::setsockopt, ::fcntl};

} // namespace streaming
