// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The table of cores. A new core is a row here; a core that differs in a new way is a new member of CoreProperties, with
// the default that is right for a core of which nothing is known.
#include "prov/rstream/core/properties.hpp"

#include <rdma/fabric.h>

namespace rstream {

namespace {

// libfabric's cores over TCP sockets of the kernel's.
constexpr CoreProperties kernel_tcp{
    .manual_progress = true,
    .queue_stays_readable = true,
    .queue_shows_end = true,
    .kernel_sockets = true,
    .kernel_ports = true,
    .answers_empty_reads = false,
    .ordered_writes = false, // memcpy of the GNU C library may store the end of a message first (rep movsb)
    .guarded_listeners = true,
    .trusts_peers = true,
    .loses_frames = false, // or TCP repeats them, in good time
};

// An adapter. It moves bytes on its own and has its own port space; the end of a connection is an event of the
// connection manager's, which the completion queue says nothing of.
constexpr CoreProperties iwarp{
    .manual_progress = false,
    .queue_stays_readable = false,
    .queue_shows_end = false,
    .kernel_sockets = false,
    .kernel_ports = false,
    .answers_empty_reads = true, // InfiniBand specification, C9-88
    .ordered_writes = true,
    .guarded_listeners = false,
    .trusts_peers = false,
    .loses_frames = false,
};

constexpr CoreProperties infiniband = [] {
    CoreProperties properties = iwarp;
    properties.loses_frames = true;
    return properties;
}();

constexpr Core table[] = {
    {"verbs", FI_PROTO_RDMA_CM_IB_RC, true, infiniband},
    {"verbs", FI_PROTO_UNSPEC, true, iwarp},
    {"tcp", FI_PROTO_SOCK_TCP, true, kernel_tcp},
    {"net", FI_PROTO_SOCK_TCP, false, kernel_tcp},
    {"sockets", FI_PROTO_SOCK_TCP, false, kernel_tcp},
};

} // namespace

std::span<const Core> core_table() { return table; }

} // namespace rstream
