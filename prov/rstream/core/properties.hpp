// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What differs between cores and is not in a core's fi_info: one name for each property that the provider asks for, and
// one table (table.cpp) that tells which core has it. No other file of the provider decides by a core's name or
// protocol. A core that is not in the table gets the defaults below: each is the value with which any core works, at
// the cost of speed or of a feature.
//
// What a core's fi_info does tell is in CoreTraits (core.hpp).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rstream {

struct CoreProperties {
    // Bytes move within calls of this process alone: neither what was posted nor what the peer writes is moved for a
    // program that computes or sleeps.
    bool manual_progress = true;

    // The descriptor of a completion queue is readable for as long as something has come that was not read, so that it
    // can be slept on without fi_trywait. False: it may tell only of what comes after fi_trywait.
    bool queue_stays_readable = false;

    // That descriptor is an epoll set whose members stay the same, so that our own sets can have them in its place: one
    // level less.
    bool queue_members_fixed = false;

    // The descriptor of a completion queue becomes readable when the connection ends, and reading the queue then moves
    // the event to the event queue. False: each connection has an event queue of its own, so that whoever waits for one
    // stream learns of its end and is not woken for all others.
    bool queue_shows_end = false;

    // A connection is a TCP socket of the kernel's: found among this process's descriptors, it takes the kernel's
    // keepalive, and is closed when the process executes another program.
    bool kernel_sockets = false;

    // A port that the core listens on is one of the kernel's TCP, which no other socket can have meanwhile. False: the
    // core has a port space of its own.
    bool kernel_ports = false;

    // A remote read of no bytes is answered by the peer's adapter, without its program and without a key. False, and no
    // kernel sockets: the core cannot be asked whether a silent peer is there.
    bool answers_empty_reads = false;

    // The bytes of one write become visible in the target's memory in order, the last one last.
    bool ordered_writes = false;

    // Each listener has an event queue of its own, read with care: a call that reads it may block in a stranger's
    // handshake, and the core uses a listener after it was closed while requests were arriving.
    bool guarded_listeners = true;

    // The core does not check what peers send: one that breaks its protocol can end this process.
    bool trusts_peers = true;

    // Connections that may share a domain; 0: all of them. See core/domains.hpp.
    uint32_t max_domain_connections = 0;

    // Frames get lost on the way and the adapter repeats them, so that long messages may wait for a timeout.
    bool loses_frames = true;
};

// A row of the table.
struct Core {
    std::string_view name; // of the libfabric provider
    uint32_t protocol;     // FI_PROTO_UNSPEC: any
    uint32_t since;        // the version of libfabric from which on the row counts, FI_VERSION
    bool by_default;       // used where neither the program nor FI_RSTREAM_CORE names a core
    CoreProperties properties;
};

// In order of preference; of several rows for one core, the first one that has its protocol and version counts. Defined
// in table.cpp. A test that needs other cores links its own.
std::span<const Core> core_table();

CoreProperties core_properties(std::string_view name, uint32_t protocol, uint32_t version);

// What a stream's status tells of its core: flags of struct fi_rstream_status.
uint64_t core_status_flags(const CoreProperties& properties);

// The names of the cores that are used by default, in order of preference.
std::vector<std::string> default_cores();

} // namespace rstream
