// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What two workers say to each other on a stream of librsocket-ofi: messages of a header and a body, in the byte order
// of little-endian machines, which both are. doc/fabric-protocol.md has the order in which they come.
#pragma once

#include <bit>
#include <cstdint>

#include "preload/path/ring.hpp"
#include "preload/rendezvous/ends.hpp"

namespace preload::fabric {

static_assert(std::endian::native == std::endian::little);

inline constexpr uint32_t protocol_version = 2;

enum class Kind : uint32_t {
    hello = 1,   // Hello, by both; first
    careful = 2, // no body: the sender's end counts every byte of its TCP connection from now on
    echo = 3,    // Echo: an urgent byte that came by TCP
    proved = 4,  // no body: the sender has had all of its urgent bytes said back
    data = 5,    // bytes of the ring; Header::position and area say where
    state = 6,   // State
    taken = 7,   // bytes for the give-back area, from Header::position on
    attend = 8,  // Header::area: 1 if somebody sleeps at the sender's whom only a frame by TCP wakes
    closed = 9,  // no body, before anything moves: the sender's program has closed, or stays with TCP
};

struct Header {
    Kind kind{};
    uint32_t bytes = 0; // of the body
    uint64_t position = 0;
    uint64_t tail = 0; // data: how far the sender's program has read its own ring
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

struct Echo {
    uint32_t say = 0; // MirrorFields::say_of()
};

// What one host's program has written in its segment (see path/ring.hpp), and what its worker says besides. Each is the
// whole of it: what comes last counts.
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
    // of the one that it reads
    uint64_t tail = 0;
    uint64_t received = 0;
    uint64_t given_back = 0;
    uint32_t followed = 0;
    uint32_t request = 0;
    uint32_t grants = 0;    // how many times the reader has consented to a switch
    uint32_t withdraw = 0;  // the number of a grant that it wants back
    uint32_t withdrawn = 0; // the number of the far end's grant that is given back
    uint32_t sync = 0;      // to be said back once all before it is in the far segment
    uint32_t synced = 0;
    uint32_t closing = 0; // the stream ends when this is said back

    bool operator==(const State&) const = default;
};

// A body is at most as large as the ring's largest area.
inline constexpr uint32_t max_body = path::area_sizes[path::areas - 1];

} // namespace preload::fabric
