// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The gate that each call on a connection passes: to the kernel, counted while in flight, or to careful mode. A
// connection becomes careful while no plain call is in flight in any process: then its positions are known.
#pragma once

#include "preload/connection/connection.hpp"

namespace preload::gate {

enum class Way : uint8_t {
    kernel, // pinned: nothing is counted
    plain,  // enter() has counted the call; leave() takes it back
    careful,
};

inline Way enter(ConnectionState& s) {
    uint64_t now = s.gate.load(std::memory_order_relaxed);
    for (;;) {
        if ((now & careful) != 0) {
            return Way::careful;
        }
        if ((now & pinned) != 0) {
            return Way::kernel;
        }
        if (s.gate.compare_exchange_weak(now, now + one, std::memory_order_acquire, std::memory_order_relaxed)) {
            return Way::plain;
        }
    }
}

// It is careful, or about to be, or stays with the kernel for good: there is nothing to negotiate.
inline bool is_settled(const ConnectionState& s) {
    return (s.gate.load(std::memory_order_relaxed) & (wanted | careful | pinned)) != 0;
}

// And this process has its memory.
inline bool is_careful(const Connection& c) {
    return (c.state.load()->gate.load(std::memory_order_acquire) & careful) != 0 && c.segment.load() != nullptr;
}

// Makes the connection careful, if that is wanted and no plain call is in flight.
void consent(Connection& c, int fd);

inline void leave(Connection& c, ConnectionState& s, int fd) {
    const uint64_t before = s.gate.fetch_sub(one, std::memory_order_release);
    if ((before & wanted) != 0 && (before & count_mask) == 1) [[unlikely]] {
        consent(c, fd);
    }
}

// Restores the program's TCP_NODELAY and TCP_CORK in the kernel.
void restore_options(ConnectionState& s, int fd);

// The segment is ready: the connection becomes careful when no plain call is in flight.
void want(Connection& c, int fd);
// Pins the connection to the kernel for good. False: it is careful, and must return first.
bool pin(ConnectionState& s);

} // namespace preload::gate
