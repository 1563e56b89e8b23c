// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The half of a connection that faces the program: bytes in, bytes out, what could be done, and waiting for it. The
// meaning of every return value is in fi_rstream(7).
#include "prov/rstream/connection.hpp"

#include <algorithm>
#include <cstring>

#include "include/rdma/fi_ext_rstream.h"
#include "prov/rstream/domain.hpp"

namespace rstream {

namespace {

// While small sends are held back, completions are looked at once for this many bytes: a look costs a system call on
// some cores, and a look too few only makes the messages larger.
constexpr size_t poll_quantum = 4096;
// More than this in the core's hands may wait for a look of ours to go on.
constexpr size_t much_in_core = size_t{256} << 10;

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
int Connection::send_error() {
    const State state = state_.load(std::memory_order_acquire);
    if (state == State::open || state == State::connecting) {
        return -FI_ENOTCONN;
    }
    if (link_.finishing() || link_.peer_closed()) {
        return -FI_EPIPE;
    }
    if (state == State::failed || link_.peer_reset()) {
        if (link_.peer_finished() || error_told_.exchange(true)) {
            return -FI_EPIPE;
        }
        const int error = error_.load();
        return -(error != 0 ? error : FI_ECONNRESET);
    }
    return 0;
}

size_t Connection::copy_in(const iovec* iov, size_t count, bool more) {
    size_t copied = 0;
    size_t unflushed = 0;
    for (size_t i = 0; i < count; ++i) {
        const auto* from = static_cast<const std::byte*>(iov[i].iov_base);
        for (size_t left = iov[i].iov_len; left != 0;) {
            const wire::Extent room = link_.room(std::min(left, max_chunk_));
            if (room.length == 0) {
                flush();
                return copied;
            }
            memcpy(staging_.data() + room.offset, from, room.length);
            link_.stage(room.length);
            from += room.length;
            left -= room.length;
            copied += room.length;
            unflushed += room.length;
            if (unflushed >= max_chunk_) { // the peer can begin while the rest is copied
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

// `look`: enough was held back meanwhile to see whether credit has come.
ssize_t Connection::try_send(const iovec* iov, size_t count, bool more, bool& look) {
    const size_t length = total_length(iov, count);
    const Posting posting(*this);
    if (const int error = send_error(); error != 0) {
        return error;
    }
    if (length == 0) {
        return 0;
    }
    if (count == 1 && !more && length <= traits_.inject_size && !header_pending_) {
        if (const auto direct = link_.bypass(length)) {
            if (post(*direct, iov[0].iov_base) == 0) {
                return static_cast<ssize_t>(length);
            }
            link_.undo(*direct);
        }
    }
    const size_t copied = copy_in(iov, count, more);
    if (copied == 0) {
        return -FI_EAGAIN;
    }
    unpolled_ = link_.unposted() && !more ? unpolled_ + copied : 0;
    if (unpolled_ >= std::min(poll_quantum, staging_.size() / 4)) {
        unpolled_ = 0;
        look = true;
    }
    return static_cast<ssize_t>(copied);
}

ssize_t Connection::send(const iovec* iov, size_t count, bool more) {
    bool look = false;
    ssize_t sent = try_send(iov, count, more, look);
    if (sent == -FI_EAGAIN) {
        progress();
        sent = try_send(iov, count, more, look);
    } else if (look) {
        progress();
    }
    send_starved_.store(sent == -FI_EAGAIN);
    return sent;
}

// What could not go yet: the next call of any kind tries again, and so does the event queue.
void Connection::note_needs() {
    const bool left = link_.unposted() || header_pending_ || (link_.finishing() && !link_.end_posted());
    flush_wanted_.store(left, std::memory_order_release);
    const bool needy = left || staging_.size() - link_.space() > much_in_core;
    if (needy != needy_) {
        needy_ = needy;
        pump_->set_needy(this, needy);
    }
}

ssize_t Connection::peek_send() {
    for (int attempt = 0;; ++attempt) {
        {
            const Posting posting(*this);
            if (const int error = send_error(); error != 0) {
                return error;
            }
            if (const size_t space = link_.space(); space != 0) {
                send_starved_.store(false);
                return static_cast<ssize_t>(space);
            }
        }
        if (attempt != 0) {
            send_starved_.store(true);
            return -FI_EAGAIN;
        }
        progress();
    }
}

size_t Connection::copy_out(const iovec* iov, size_t count, bool take) {
    size_t copied = 0;
    for (size_t i = 0; i < count; ++i) {
        auto* to = static_cast<std::byte*>(iov[i].iov_base);
        for (size_t left = iov[i].iov_len; left != 0;) {
            const wire::Extent piece = link_.peek(left, take ? 0 : copied);
            if (piece.length == 0) {
                return copied;
            }
            memcpy(to, ring_.data() + piece.offset, piece.length);
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
ssize_t Connection::readable_or_end() {
    for (int attempt = 0;; ++attempt) {
        // The end is looked at before the bytes: what comes in between is in front of it.
        const State state = state_.load(std::memory_order_acquire);
        const bool finished = link_.peer_finished();
        const bool reset = link_.peer_reset();
        if (const size_t readable = link_.readable(); readable != 0) {
            return static_cast<ssize_t>(readable);
        }
        if (finished) {
            end_told_.store(true);
            return 0;
        }
        if (reset || state == State::failed) {
            end_told_.store(true);
            error_told_.store(true);
            const int error = error_.load();
            return -(reset || error == 0 ? FI_ECONNRESET : error);
        }
        if (receive_shut_.load()) {
            return 0;
        }
        if (state != State::connected) {
            return -FI_ENOTCONN;
        }
        if (attempt != 0) {
            return -FI_EAGAIN;
        }
        progress();
    }
}

ssize_t Connection::recv(const iovec* iov, size_t count) {
    size_t taken = 0;
    {
        const std::lock_guard lock(rx_mutex_);
        peeked_.store(0);
        const ssize_t readable = readable_or_end();
        if (readable <= 0) {
            return readable;
        }
        taken = copy_out(iov, count, true);
    }
    if (link_.control_due()) {
        kick();
    }
    return static_cast<ssize_t>(taken);
}

ssize_t Connection::peek_recv(const iovec* iov, size_t count) {
    const std::lock_guard lock(rx_mutex_);
    const ssize_t readable = readable_or_end();
    if (readable <= 0) {
        return readable;
    }
    if (peeked_.exchange(static_cast<size_t>(readable)) == static_cast<size_t>(readable)) {
        await_more();
    }
    return total_length(iov, count) == 0 ? readable : static_cast<ssize_t>(copy_out(iov, count, false));
}

// The program has seen what is there, took none of it, and looks again: it needs more at once.
void Connection::await_more() {
    link_.await_more();
    if (link_.control_due()) {
        kick();
    }
}

int Connection::try_wait() {
    progress();
    if (peeked_.load() != 0) {
        await_more();
    }
    if (link_.readable() != peeked_.load()) {
        return -FI_EAGAIN;
    }
    const bool ended = link_.peer_finished() || link_.peer_reset() || state_.load() == State::failed;
    if (ended && !end_told_.load()) {
        return -FI_EAGAIN;
    }
    if (send_starved_.load()) {
        const Posting posting(*this);
        if (link_.space() != 0 || state_.load() == State::failed) {
            return -FI_EAGAIN;
        }
    }
    return try_wait_for_anything();
}

int Connection::try_wait_for_anything() {
    AnyFid* cq = &cq_->fid;
    return fi_trywait(domain_.fabric().core(), &cq, 1);
}

} // namespace rstream
