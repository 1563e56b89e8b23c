// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The half of a connection that faces the program: bytes in, bytes out, what could be done, and waiting for it. The
// meaning of every return value is in fi_rstream(7).
#include "prov/rstream/stream/stream.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "include/rdma/fi_ext_rstream.h"
#include "prov/rstream/core_descriptors.hpp"
#include "prov/rstream/domain.hpp"

namespace rstream {

namespace {

// While small sends are held back, completions are looked at once for this many bytes: a look costs a system call on
// some cores, and a look too few only makes the messages larger.
constexpr size_t poll_quantum = 4096;

size_t total_length(const iovec* iov, size_t count) {
    size_t total = 0;
    for (size_t i = 0; i < count; ++i) {
        total += iov[i].iov_len;
    }
    return total;
}

} // namespace

// 0, or why nothing can be sent any more. Once the loss of a connection was told, by whichever call, it is a broken
// pipe.
int Stream::send_error() {
    const State state = lifecycle_.state();
    if (!has_connected(state)) {
        return -FI_ENOTCONN;
    }
    if (link_.finishing() || link_.peer_closed()) {
        return -FI_EPIPE;
    }
    if (has_failed(state) || link_.peer_reset()) {
        readiness_.on_end_reported();
        if (link_.peer_finished() || !lifecycle_.claim_error_report()) {
            return -FI_EPIPE;
        }
        const int error = lifecycle_.error();
        return -(error != 0 ? error : FI_ECONNRESET);
    }
    return 0;
}

size_t Stream::copy_in(const iovec* iov, size_t count, bool more) {
    size_t copied = 0;
    size_t unflushed = 0;
    for (size_t i = 0; i < count; ++i) {
        const auto* from = static_cast<const std::byte*>(iov[i].iov_base);
        for (size_t left = iov[i].iov_len; left != 0;) {
            const wire::Extent room = link_.room(std::min(left, chunk_size_.get()));
            if (room.length == 0) {
                note_held_up();
                flush();
                return copied;
            }
            memcpy(staging_.at(room.offset, room.moved), from, room.length);
            link_.stage(room.length);
            from += room.length;
            left -= room.length;
            copied += room.length;
            unflushed += room.length;
            if (unflushed >= chunk_size_.get()) { // the peer can begin while the rest is copied
                flush();
                unflushed = 0;
            }
        }
    }
    if (!more) {
        flush();
    } else {
        note_needs();
    }
    return copied;
}

ssize_t Stream::try_send(const iovec* iov, size_t count, bool more, Leftover& left) {
    const size_t length = total_length(iov, count);
    const Posting posting(*this);
    if (const int error = send_error(); error != 0) {
        return error;
    }
    if (length == 0) {
        return 0;
    }
    if (count == 1 && !more && length <= core_.traits().inject_size && !header_pending_ &&
        !work_requests_.signal_due(0)) {
        if (const auto direct = link_.bypass(length)) {
            if (post(*direct, iov[0].iov_base) == 0) {
                return static_cast<ssize_t>(length);
            }
            link_.undo(*direct);
        }
    }
    const size_t copied = copy_in(iov, count, more);
    left.staging = left.staging || link_.staging_moves() || staging_threshold_.reached();
    if (copied == 0) {
        return -FI_EAGAIN;
    }
    unpolled_ = link_.unposted() && !more ? unpolled_ + copied : 0;
    if (unpolled_ >= std::min(poll_quantum, link_.staging_size() / 4)) {
        unpolled_ = 0;
        left.look = true;
    }
    return static_cast<ssize_t>(copied);
}

ssize_t Stream::send(const iovec* iov, size_t count, bool more) {
    Leftover left;
    ssize_t sent = try_send(iov, count, more, left);
    if (sent == -FI_EAGAIN) {
        progress();
        sent = try_send(iov, count, more, left);
    } else if (left.look) {
        progress();
    }
    if (left.staging) {
        resize_staging();
    }
    readiness_.on_send(sent == -FI_EAGAIN);
    return sent;
}

// What could not go yet: the next call of any kind tries again, and so does the event queue.
void Stream::note_needs() {
    const bool left = link_.unposted() || header_pending_ || link_.map_due() || work_requests_.skipped() ||
                      (link_.finishing() && !link_.end_posted()) || link_.control_due();
    flush_wanted_.store(left, std::memory_order_release);
    if (left != needy_) {
        needy_ = left;
        pump_->set_needy(this, left);
    }
}

ssize_t Stream::peek_send() {
    progress();
    if (const int error = send_error(); error != 0) {
        return error;
    }
    const size_t space = link_.space();
    readiness_.on_send(space == 0);
    return space != 0 ? static_cast<ssize_t>(space) : -FI_EAGAIN;
}

size_t Stream::copy_out(const iovec* iov, size_t count, bool take) {
    size_t copied = 0;
    for (size_t i = 0; i < count; ++i) {
        auto* to = static_cast<std::byte*>(iov[i].iov_base);
        for (size_t left = iov[i].iov_len; left != 0;) {
            const wire::Extent piece = link_.peek(left, take ? 0 : copied);
            if (piece.length == 0) {
                return copied;
            }
            memcpy(to, ring_.at(piece.offset, piece.moved), piece.length);
            if (take) {
                link_.consume(piece.length);
            }
            to += piece.length;
            left -= piece.length;
            copied += piece.length;
        }
    }
    return copied;
}

// The bytes that can be read, 0 at the end of the stream, or why there are none.
ssize_t Stream::readable_or_end() {
    if (!has_connected(lifecycle_.state())) {
        return -FI_ENOTCONN;
    }
    readiness_.on_poll();
    for (int attempt = 0;; ++attempt) {
        // The end is looked at before the bytes: what comes in between is in front of it.
        const bool failed = lifecycle_.failed();
        const bool finished = link_.peer_finished();
        const bool reset = link_.peer_reset();
        if (const size_t readable = link_.readable(); readable != 0) {
            return static_cast<ssize_t>(readable);
        }
        if (finished) {
            readiness_.on_end_reported();
            return 0;
        }
        if (reset || failed) {
            readiness_.on_end_reported();
            lifecycle_.on_error_reported();
            const int error = lifecycle_.error();
            return -(reset || error == 0 ? FI_ECONNRESET : error);
        }
        if (attempt == 0) {
            progress(); // after an own shutdown too: what was sent may need it
            continue;
        }
        if (lifecycle_.receive_shut()) {
            return 0;
        }
        readiness_.on_recv_blocked();
        return -FI_EAGAIN;
    }
}

ssize_t Stream::recv_from_ring(const iovec* iov, size_t count, RegisteredBuffer& emptied) {
    const base::Guard lock(reading_);
    readiness_.begin_recv();
    ssize_t result = readable_or_end();
    if (result > 0) {
        const auto there = static_cast<size_t>(result);
        const size_t taken = copy_out(iov, count, true);
        result = static_cast<ssize_t>(taken);
        readiness_.on_recv(there - std::min(there, taken));
    }
    if (link_.settle()) {
        emptied = ring_.settle();
    }
    return result;
}

ssize_t Stream::recv(const iovec* iov, size_t count) {
    RegisteredBuffer emptied;
    const ssize_t taken = recv_from_ring(iov, count, emptied);
    if (emptied.buffer.size() != 0) {
        retire_ring(std::move(emptied));
    }
    if (link_.growth_wanted() &&
        (taken == -FI_EAGAIN || (taken > 0 && static_cast<size_t>(taken) < total_length(iov, count)))) {
        resize_ring(); // the peer waits for room, and the program would have taken more
    }
    if (taken < 0 || (taken == 0 && link_.readable() == 0)) {
        return taken;
    }
    if (link_.control_due() || flush_wanted_.load(std::memory_order_acquire)) {
        request_flush();
    }
    if (link_.readable() != 0) {
        wake_waiters(); // another thread may have waited for what is left
    }
    return taken;
}

ssize_t Stream::peek_recv(const iovec* iov, size_t count) {
    progress();
    const ssize_t there = peek_ring(iov, count);
    if (there == -FI_EAGAIN && link_.growth_wanted()) {
        resize_ring();
    }
    return there;
}

ssize_t Stream::peek_ring(const iovec* iov, size_t count) {
    const base::Guard lock(reading_);
    const ssize_t readable = readable_or_end();
    if (readable <= 0) {
        return readable;
    }
    if (readiness_.on_peek(static_cast<size_t>(readable))) {
        await_more();
    }
    return total_length(iov, count) == 0 ? readable : static_cast<ssize_t>(copy_out(iov, count, false));
}

// The program has seen what is there, took none of it, and looks again: it needs more at once.
void Stream::await_more() {
    link_.await_more();
    if (link_.control_due()) {
        request_flush();
    }
}

// One thread may take from the core what another sleeps for: the descriptor is kept readable for that one.
void Stream::wake_waiters() {
    if (wait_set_.armed() && readiness_.wakes(*this)) {
        wait_set_.notify();
    }
}

// A core whose progress is manual may hold on to what was posted; an adapter needs nobody's help.
bool Stream::waiting() const {
    return flush_wanted_.load(std::memory_order_acquire) ||
           (core_.properties().manual_progress && !work_requests_.all_completed());
}

fi_rstream_status Stream::status() const {
    fi_rstream_status status{};
    // What comes last is looked at first: who sees the loss sees the end that came before it, and who sees the end sees
    // all bytes in front of it.
    const State state = lifecycle_.state();
    const bool lost = has_failed(state);
    if (!has_connected(state)) { // there is no link yet
        status.flags = (lost ? FI_RSTREAM_LOST : 0) | core_status_flags(core_.properties());
        return status;
    }
    const bool reset = link_.peer_reset();
    const bool closed = link_.peer_closed();
    const bool finished = link_.peer_finished();
    status.flags = (finished ? FI_RSTREAM_PEER_FINISHED : 0) | (closed ? FI_RSTREAM_PEER_CLOSED : 0) |
                   (reset ? FI_RSTREAM_PEER_RESET : 0) | (lost ? FI_RSTREAM_LOST : 0) |
                   (link_.anything_unacknowledged() ? FI_RSTREAM_UNACKED : 0) | (waiting() ? FI_RSTREAM_WAITING : 0) |
                   core_status_flags(core_.properties());
    status.readable = link_.readable();
    status.writable = link_.space();
    status.unsent = link_.unreleased();
    return status;
}

int Stream::wait_fd(int& fd) {
    fd = wait_set_.fd();
    if (fd >= 0) {
        return 0;
    }
    std::vector<Watched> members;
    std::vector<int> queue;
    if (core_.properties().queue_members_fixed && watched_by(core_.completions_fd(), members)) {
        for (const Watched& member : members) {
            queue.push_back(member.fd);
        }
    }
    if (queue.empty()) {
        queue.push_back(core_.completions_fd());
    }
    const int ret = wait_set_.make(queue, [this] { return readiness_.wakes(*this); });
    fd = wait_set_.fd();
    return ret;
}

int Stream::try_wait() {
    take_core_events();
    progress();
    if (readiness_.shows_bytes()) {
        await_more();
    }
    if (link_.growth_wanted() && link_.readable() == 0) {
        resize_ring();
    }
    wait_set_.arm();
    if (readiness_.ready(*this)) {
        return -FI_EAGAIN;
    }
    wait_set_.retract([this] { return readiness_.wakes(*this); });
    if (lost()) {
        return 0; // a lost connection's queue has nothing new to say
    }
    return try_wait_core();
}

} // namespace rstream
