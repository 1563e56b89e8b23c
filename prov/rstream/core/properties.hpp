// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Differences between cores that are not in a core's fi_info: one name for each property that the provider needs, and
// one table (table.cpp) with the properties of each core. No other file of the provider depends on a core's name or
// protocol. A core that is not in the table gets the defaults below: each is the value with which any core works, at
// the cost of speed or of a feature.
//
// The attributes in a core's fi_info are in CoreTraits (core.hpp).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rstream {

struct CoreProperties {
    // Data moves within calls of this process alone: neither posted data nor the peer's writes make progress while the
    // program computes or sleeps.
    bool manual_progress = true;

    // The fd of a completion queue is readable as long as there is an unread completion, so that a thread can sleep on
    // it without fi_trywait. False: it may signal only completions that arrive after fi_trywait.
    bool queue_stays_readable = false;

    // That fd is an epoll set whose members never change, so that our own sets can contain them in its place: one
    // nesting level less.
    bool queue_members_fixed = false;

    // The fd of a completion queue becomes readable when the connection ends, and reading the queue then moves the
    // event to the event queue. False: each connection has an event queue of its own, so that a waiter of one stream
    // learns of its end and does not wake for all others.
    bool queue_shows_end = false;

    // A connection is a TCP socket of the kernel's, which is found among the fds of this process, uses the kernel's
    // keepalive, and is closed when the process executes another program.
    bool kernel_sockets = false;

    // A port that the core listens on is a kernel TCP port, which no other socket can use meanwhile. False: the core
    // has a port space of its own.
    bool kernel_ports = false;

    // The peer's adapter answers a remote read of zero bytes, without its program and without a key. False, and no
    // kernel sockets: the core cannot probe a silent peer.
    bool answers_empty_reads = false;

    // The bytes of one write become visible in the target's memory in order, the last one last.
    bool ordered_writes = false;

    // Each listener has an event queue of its own with bounded handshakes (listen_queue.hpp): a call that reads it may
    // block in a client's handshake, and the core uses a listener after it was closed while requests were arriving.
    bool guarded_listeners = true;

    // The core does not validate data from peers: a peer that breaks its protocol can crash this process.
    bool trusts_peers = true;

    // Max connections on one domain; 0: unlimited. See core/domains.hpp, and table.cpp for the default.
    uint32_t max_domain_connections = 16;

    // The network loses frames and the adapter retransmits them, so that long messages may wait for a timeout.
    bool loses_frames = true;
};

// A row of the table.
struct Core {
    std::string_view name; // of the libfabric provider
    uint32_t protocol;     // FI_PROTO_UNSPEC: any
    uint32_t since;        // first libfabric version that the row applies to, FI_VERSION
    bool by_default;       // used where neither the program nor FI_RSTREAM_CORE names a core
    CoreProperties properties;
};

// In order of preference; of several rows for one core, the first with its protocol and version applies. Defined in
// table.cpp. A test that needs other cores links its own table.
std::span<const Core> core_table();

CoreProperties core_properties(std::string_view name, uint32_t protocol, uint32_t version);

// The core's flags in struct fi_rstream_status.
uint64_t core_status_flags(const CoreProperties& properties);

// The names of the cores that are used by default, in order of preference.
std::vector<std::string> default_cores();
// Those that have a row. libfabric may have others.
std::vector<std::string> known_cores();

} // namespace rstream
