// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The table of cores. A new core is a row here; a core that differs in a new way is a new member of CoreProperties,
// with the default that is correct for an unknown core.
#include "prov/rstream/core/properties.hpp"

#include <rdma/fabric.h>

namespace rstream {

namespace {

// libfabric's cores over kernel TCP sockets.
constexpr CoreProperties kernel_tcp{
    .manual_progress = true,
    .queue_stays_readable = true,
    .queue_members_fixed = false, // a socket becomes a member with its connection
    .queue_shows_end = true,
    .kernel_sockets = true,
    .kernel_ports = true,
    .answers_empty_reads = false,
    .ordered_writes = false, // memcpy of the GNU C library may store the end of a message first (rep movsb)
    .guarded_listeners = true,
    .trusts_peers = true,
    .max_domain_connections = 0,
    .loses_frames = false, // TCP retransmits them in time
};

// All sockets of a domain are in one epoll set, which is a member of the fd of each of its queues. From a socket in
// such a set, the kernel allows 500 paths through one further set, 100 through two, 50 through three and 10 through
// four. A connection adds one path through three sets, by its endpoint's fd, a socket of rsockets and a set of the
// program's, and another by the event queue: 16 connections add 32 such paths. Smaller groups would cost memory: a
// domain in use takes 17 MB in libfabric 2.6, unless FI_TCP_MAX_RX_SIZE is smaller than its default of 16 KiB.
constexpr CoreProperties kernel_tcp_in_one_set = [] {
    CoreProperties properties = kernel_tcp;
    properties.queue_members_fixed = true;
    properties.max_domain_connections = CoreProperties().max_domain_connections;
    return properties;
}();

// An adapter. It makes progress on its own and has its own port space; the end of a connection is an event of the
// connection manager's, which the completion queue does not show.
constexpr CoreProperties iwarp{
    .manual_progress = false,
    .queue_stays_readable = false,
    .queue_members_fixed = false, // it is not an epoll set
    .queue_shows_end = false,
    .kernel_sockets = false,
    .kernel_ports = false,
    .answers_empty_reads = true, // InfiniBand specification, C9-88
    .ordered_writes = true,
    .guarded_listeners = false,
    .trusts_peers = false,
    .max_domain_connections = 0,
    .loses_frames = false,
};

constexpr CoreProperties infiniband = [] {
    CoreProperties properties = iwarp;
    properties.loses_frames = true;
    return properties;
}();

constexpr uint32_t any_version = 0;

constexpr Core table[] = {
    {"verbs", FI_PROTO_RDMA_CM_IB_RC, any_version, true, infiniband},
    {"verbs", FI_PROTO_UNSPEC, any_version, true, iwarp},
    {"tcp", FI_PROTO_SOCK_TCP, FI_VERSION(1, 19), true, kernel_tcp_in_one_set},
    {"tcp", FI_PROTO_SOCK_TCP, any_version, true, kernel_tcp},
    {"net", FI_PROTO_SOCK_TCP, any_version, false, kernel_tcp},
    {"sockets", FI_PROTO_SOCK_TCP, any_version, false, kernel_tcp},
};

} // namespace

std::span<const Core> core_table() { return table; }

} // namespace rstream
