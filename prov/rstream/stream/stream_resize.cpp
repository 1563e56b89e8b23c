// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Buffers that grow while the stream is busy, and shrink when it is idle. Memory is allocated, registered and released
// here, within calls of the program that hold no lock.
#include "prov/rstream/stream/stream.hpp"

namespace rstream {

// True if there is more space now.
bool Stream::grow_staging() {
    const bool grown = transmit_.resize();
    if (grown) {
        start_idle_timer();
        wake_waiters(); // another thread may wait for the space
    }
    return grown;
}

// The same, for a call that finds no space.
bool Stream::grow_full_staging() {
    const bool grown = transmit_.enlarge_full();
    if (grown) {
        start_idle_timer();
        wake_waiters();
    }
    return grown;
}

void Stream::grow_ring() {
    if (receive_.grow()) {
        start_idle_timer();
        transmit_.request_flush();
    }
}

void Stream::start_idle_timer() {
    idle_timer_.start(traffic(), [this](int fd) { return wait_set_.add(fd); });
}

// For a call that finds nothing to read, perhaps the last one for long: releases a ring that was left, and lets idle
// buffers shrink.
void Stream::trim_buffers() {
    const bool settles = link_.ring_moves() && link_.readable() == 0;
    if (settles) {
        receive_.settle();
    }
    const bool due = idle_timer_.due();
    if (due) {
        const IdleTimer::Idle idle = idle_timer_.check(traffic());
        const IdleTimer::Traffic first = idle_timer_.first_sizes();
        if (idle.sending) {
            transmit_.shrink(first.sent);
        }
        if (idle.receiving && receive_.shrink(first.received)) {
            transmit_.request_flush();
        }
    }
    if (due || (settles && idle_timer_.running())) {
        idle_timer_.stop_if([this] { return no_buffer_can_shrink(); }, [this](int fd) { wait_set_.remove(fd); });
    }
}

bool Stream::no_buffer_can_shrink() const {
    const IdleTimer::Traffic first = idle_timer_.first_sizes();
    const bool ring_is_final =
        !link_.peer_shrinks() || ended() || (link_.ring_size() <= first.received && link_.ring_at_rest());
    return lost() || (link_.staging_size() <= first.sent && ring_is_final);
}

} // namespace rstream
