// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Messages between two workers on a stream of librsocket-ofi: a header and a body, in little-endian byte order, which
// both machines have. doc/fabric-protocol.md has their order.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "preload/path/ring.hpp"
#include "preload/rendezvous/ends.hpp"

namespace preload::fabric {

static_assert(std::endian::native == std::endian::little);

inline constexpr uint32_t protocol_version = 4;

enum class Kind : uint32_t {
    hello = 1,   // Hello, from both ends; first
    careful = 2, // no body: the sender's end counts every byte of its TCP connection from now on
    echo = 3,    // Echo: an urgent byte that came by TCP
    proved = 4,  // OtherAddresses: the sender has received the echoes of all its urgent bytes
    data = 5,    // bytes of the ring; Header::position and area give the place
    state = 6,   // State
    taken = 7,   // bytes for the give-back area, from Header::position on
    attend = 8,  // Header::area: 1 if only a TCP frame can wake a waiter at the sender's host
    closed = 9,  // ClosedEarly, from both ends, before any data: the sender's program has closed, or stays with TCP
};

struct Header {
    Kind kind{};
    uint32_t bytes = 0; // of the body
    uint64_t position = 0;
    uint64_t tail = 0; // data: how far the sender's program has read the other direction
    uint32_t area = 0;
    uint32_t reserved = 0;
};

struct Hello {
    static constexpr uint64_t expected_magic = 0x62614666'6f737372; // "rssofFab"
    uint64_t magic = expected_magic;
    uint32_t version = protocol_version;
    uint32_t ring_bytes = path::ring_bytes;
    rendezvous::Ends ends; // of the TCP connection, as the sender sees them
};

// As in rendezvous::Address: an IPv4 address is ::ffff:a.b.c.d.
using HostAddress = decltype(rendezvous::Address::bytes);
// Those of the sender's host that further devices have, of the family of the connection's; all bytes 0: none.
using OtherAddresses = std::array<HostAddress, 3>;

struct Echo {
    uint32_t urgent = 0; // MirrorFields::urgent_of()
};

// What one host's program has written to its segment (see path/ring.hpp), and what its worker adds. Each message is
// complete: the last one counts.
struct State {
    // of the direction that the sender's program writes
    uint32_t epoch = 0;
    uint32_t frames = 0;
    uint64_t switch_at = 0;
    uint64_t sent = 0;
    uint32_t resent = 0;
    uint32_t resets = 0;
    uint32_t ends = 0;
    uint32_t clear = 0;
    // of the direction that it reads
    uint64_t tail = 0;
    uint64_t received = 0;
    uint64_t given_back = 0;
    uint32_t followed = 0;
    uint32_t request = 0;
    uint32_t grants = 0;    // number of times the reader has consented to a switch
    uint32_t withdraw = 0;  // number of the grant that the reader withdraws
    uint32_t withdrawn = 0; // number of the far end's grant that is given back
    uint32_t sync = 0;      // to be echoed once everything before it is in the far segment
    uint32_t synced = 0;
    uint32_t closing = 0; // the sync whose echo ends the stream

    bool operator==(const State&) const = default;
};

// An end that has sent it sends no urgent byte any more.
struct ClosedEarly {
    uint32_t urgent_sent = 0; // how many it has sent
};

// A body is at most as large as the ring's largest area.
inline constexpr uint32_t max_body = path::area_sizes[path::areas - 1];

} // namespace preload::fabric
