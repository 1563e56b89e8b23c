// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The program's data calls: send, receive, peek and status. The meaning of every return value is in fi_rstream(7).
#include "prov/rstream/stream/stream.hpp"

#include "include/rdma/fi_ext_rstream.h"
#include "prov/rstream/domain.hpp"
#include "prov/rstream/stream/iov.hpp"

namespace rstream {

ssize_t Stream::send(const iovec* iov, size_t count, bool more) {
    Transmit::Leftover left;
    ssize_t sent = transmit_.send(iov, count, more, left);
    if (sent == -FI_EAGAIN) {
        progress();
        sent = transmit_.send(iov, count, more, left);
        if (sent == -FI_EAGAIN && grow_full_staging()) {
            sent = transmit_.send(iov, count, more, left);
        }
    } else if (left.poll) {
        progress();
    }
    if (left.resize) {
        grow_staging();
    }
    if (sent > 0) {
        note_cause_of_wake();
    }
    readiness_.on_send(sent);
    return sent;
}

ssize_t Stream::peek_send() {
    progress();
    ssize_t result = transmit_.error();
    if (result == 0) {
        if (link_.space() == 0) { // who asks before each send may never make one that finds none
            grow_full_staging();
        }
        const size_t space = link_.space();
        result = space != 0 ? static_cast<ssize_t>(space) : -FI_EAGAIN;
    }
    readiness_.on_send(result);
    return result;
}

ssize_t Stream::recv(const iovec* iov, size_t count) {
    bool due = false; // waiters, to be woken for what this call finds
    const ssize_t taken = receive_.recv(iov, count, [&] {
        advance();
        due = due || waiters_are_due();
    });
    // Not for bytes that it has consumed: most often the thread that slept for them is this one.
    if (due && (taken < 0 || link_.readable() != 0 || ended() || waiters_are_due())) {
        wait_set_.notify();
    }
    if (link_.growth_wanted() &&
        (taken == -FI_EAGAIN || (taken > 0 && static_cast<size_t>(taken) < total_length(iov, count)))) {
        grow_ring(); // the peer waits for space, and the program would have consumed more
    }
    if (taken == -FI_EAGAIN) {
        trim_buffers();
    }
    if (taken < 0 || (taken == 0 && link_.readable() == 0)) {
        return taken;
    }
    if (link_.control_due() || transmit_.flush_wanted()) {
        transmit_.request_flush();
    }
    if (link_.readable() != 0) {
        wake_waiters(); // another thread may wait for the bytes that are left
    }
    return taken;
}

ssize_t Stream::peek_recv(const iovec* iov, size_t count) {
    progress();
    const Receive::Peeked peeked = receive_.peek(iov, count, [this] { progress(); });
    if (peeked.needs_more) {
        flush_control();
    }
    if (peeked.result == -FI_EAGAIN) {
        if (link_.growth_wanted()) {
            grow_ring();
        }
        trim_buffers();
    }
    return peeked.result;
}

void Stream::flush_control() {
    if (link_.control_due()) {
        transmit_.request_flush();
    }
}

fi_rstream_status Stream::status() const {
    fi_rstream_status status{};
    // Read in reverse order of occurrence: a status with the loss has an end before it too, and a status with the end
    // has all bytes before that.
    const State state = lifecycle_.state();
    const bool lost = has_failed(state);
    if (!has_connected(state)) { // the stream state is not open yet
        status.flags = (lost ? FI_RSTREAM_LOST : 0) | core_status_flags(core_.properties());
        return status;
    }
    const bool reset = link_.peer_reset();
    const bool closed = link_.peer_closed();
    const bool finished = link_.peer_finished();
    status.flags = (finished ? FI_RSTREAM_PEER_FINISHED : 0) | (closed ? FI_RSTREAM_PEER_CLOSED : 0) |
                   (reset ? FI_RSTREAM_PEER_RESET : 0) | (lost ? FI_RSTREAM_LOST : 0) |
                   (link_.anything_unacknowledged() ? FI_RSTREAM_UNACKED : 0) |
                   (transmit_.waits_for_calls() ? FI_RSTREAM_WAITING : 0) | core_status_flags(core_.properties());
    status.readable = link_.readable();
    status.arrived = link_.received();
    status.writable = link_.space();
    status.unsent = link_.unreleased();
    return status;
}

} // namespace rstream
