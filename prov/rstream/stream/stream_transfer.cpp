// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The half of a connection that faces the program: bytes in, bytes out, what could be done, and waiting for it. The
// meaning of every return value is in fi_rstream(7).
#include "prov/rstream/stream/stream.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

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
    const State state = state_.load(std::memory_order_acquire);
    if (!was_connected_.load()) {
        return -FI_ENOTCONN;
    }
    if (link_.finishing() || link_.peer_closed()) {
        return -FI_EPIPE;
    }
    if (state == State::failed || link_.peer_reset()) {
        end_told_.store(true);
        if (link_.peer_finished() || error_told_.exchange(true)) {
            return -FI_EPIPE;
        }
        const int error = error_.load();
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
            const wire::Extent room = link_.room(std::min(left, max_chunk_));
            if (room.length == 0) {
                note_held_up();
                flush();
                return copied;
            }
            memcpy((room.moved ? next_staging_ : staging_).buffer.data() + room.offset, from, room.length);
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

ssize_t Stream::try_send(const iovec* iov, size_t count, bool more, Leftover& left) {
    const size_t length = total_length(iov, count);
    const Posting posting(*this);
    if (const int error = send_error(); error != 0) {
        return error;
    }
    if (length == 0) {
        return 0;
    }
    if (count == 1 && !more && length <= traits_.inject_size && !header_pending_ && !signal_due(0)) {
        if (const auto direct = link_.bypass(length)) {
            if (post(*direct, iov[0].iov_base) == 0) {
                return static_cast<ssize_t>(length);
            }
            link_.undo(*direct);
        }
    }
    const size_t copied = copy_in(iov, count, more);
    left.staging = left.staging || link_.staging_moves() || staging_stalls_ >= wire::RingWish::patience;
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
        grow_staging();
    }
    wire::put(send_starved_, sent == -FI_EAGAIN);
    return sent;
}

// What could not go yet: the next call of any kind tries again, and so does the event queue.
void Stream::note_needs() {
    const bool left = link_.unposted() || header_pending_ || link_.map_due() || unsignaled_staged_ != 0 ||
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
    wire::put(send_starved_, space == 0);
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
            memcpy(to, (piece.moved ? next_ring_ : ring_).buffer.data() + piece.offset, piece.length);
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
    if (!was_connected_.load()) {
        return -FI_ENOTCONN;
    }
    wire::put(asked_, true);
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
        if (attempt == 0) {
            progress(); // after an own shutdown too: what was sent may need it
            continue;
        }
        if (receive_shut_.load()) {
            return 0;
        }
        wire::put(recv_starved_, true);
        return -FI_EAGAIN;
    }
}

ssize_t Stream::recv_from_ring(const iovec* iov, size_t count, RegisteredBuffer& emptied) {
    const std::lock_guard lock(rx_mutex_);
    wire::put(peeked_, size_t{0});
    ssize_t result = readable_or_end();
    if (result > 0) {
        const auto there = static_cast<size_t>(result);
        const size_t taken = copy_out(iov, count, true);
        result = static_cast<ssize_t>(taken);
        wire::put(left_, there - std::min(there, taken));
        wire::put(took_, true);
        wire::put(recv_starved_, false);
    }
    if (link_.settle()) {
        std::swap(emptied, ring_);
        std::swap(ring_, next_ring_);
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
        grow_ring(); // the peer waits for room, and the program would have taken more
    }
    if (taken < 0 || (taken == 0 && link_.readable() == 0)) {
        return taken;
    }
    if (link_.control_due() || flush_wanted_.load(std::memory_order_acquire)) {
        kick();
    }
    if (link_.readable() != 0) {
        tell_sleepers(); // another thread may have waited for what is left
    }
    return taken;
}

ssize_t Stream::peek_recv(const iovec* iov, size_t count) {
    progress();
    const ssize_t there = peek_ring(iov, count);
    if (there == -FI_EAGAIN && link_.growth_wanted()) {
        grow_ring();
    }
    return there;
}

ssize_t Stream::peek_ring(const iovec* iov, size_t count) {
    const std::lock_guard lock(rx_mutex_);
    const ssize_t readable = readable_or_end();
    if (readable <= 0) {
        return readable;
    }
    if (peeked_.exchange(static_cast<size_t>(readable)) == static_cast<size_t>(readable)) {
        await_more();
    }
    took_.store(false); // after what it was told now
    return total_length(iov, count) == 0 ? readable : static_cast<ssize_t>(copy_out(iov, count, false));
}

// The program has seen what is there, took none of it, and looks again: it needs more at once.
void Stream::await_more() {
    link_.await_more();
    if (link_.control_due()) {
        kick();
    }
}

// Whether there is something for the program to do that it asked for in vain before, or that is behind what it was told
// of, or behind what there was when it last received: who takes all there is need not ask in vain before it sleeps, nor
// who has not asked for anything yet.
bool Stream::wakes_someone() const {
    const bool ended = link_.peer_finished() || link_.peer_reset() || state_.load() == State::failed;
    const size_t told = peeked_.load();
    return ((recv_starved_.load() || !asked_.load()) && (link_.readable() != 0 || ended)) ||
           (took_.load() && (link_.readable() > left_.load() || (ended && !end_told_.load()))) ||
           (told != 0 && (link_.readable() > told || (ended && !end_told_.load()))) ||
           (send_starved_.load() && (link_.space() != 0 || state_.load() == State::failed)) || unmap_is_over() ||
           (awaits_core_.load() && all_with_core());
}

// One thread may take from the core what another sleeps for: the descriptor is kept readable for that one.
void Stream::tell_sleepers() {
    if (!armed_.load() || !wakes_someone()) {
        return;
    }
    const std::lock_guard lock(wait_mutex_);
    if (!signaled_ && signal_fd_.get() >= 0) {
        const uint64_t one = 1;
        signaled_ = ::write(signal_fd_.get(), &one, sizeof(one)) == sizeof(one);
    }
}

void Stream::take_back_signal() {
    const std::lock_guard lock(wait_mutex_);
    if (signaled_ && !wakes_someone()) {
        uint64_t count = 0;
        (void)!::read(signal_fd_.get(), &count, sizeof(count));
        signaled_ = false;
    }
}

int Stream::gather(const base::Descriptor& into, int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    return epoll_ctl(into.get(), EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : -errno;
}

int Stream::gather_queue(const base::Descriptor& into) const {
    std::vector<Watched> members;
    if (!properties_.queue_members_fixed || !watched_by(cq_fd_, members) || members.empty()) {
        return gather(into, cq_fd_);
    }
    int ret = 0;
    for (size_t i = 0; i < members.size() && ret == 0; ++i) {
        ret = gather(into, members[i].fd);
    }
    return ret;
}

// A core whose progress is manual may hold on to what was posted; an adapter needs nobody's help.
bool Stream::waiting() const {
    return flush_wanted_.load(std::memory_order_acquire) ||
           (properties_.manual_progress &&
            signals_added_.load(std::memory_order_acquire) != signals_taken_.load(std::memory_order_acquire));
}

fi_rstream_status Stream::status() const {
    fi_rstream_status status{};
    // What comes last is looked at first: who sees the loss sees the end that came before it, and who sees the end sees
    // all bytes in front of it.
    const bool lost = state_.load(std::memory_order_acquire) == State::failed;
    if (!was_connected_.load(std::memory_order_acquire)) { // there is no link yet
        status.flags = (lost ? FI_RSTREAM_LOST : 0) | core_status_flags(properties_);
        return status;
    }
    const bool reset = link_.peer_reset();
    const bool closed = link_.peer_closed();
    const bool finished = link_.peer_finished();
    status.flags = (finished ? FI_RSTREAM_PEER_FINISHED : 0) | (closed ? FI_RSTREAM_PEER_CLOSED : 0) |
                   (reset ? FI_RSTREAM_PEER_RESET : 0) | (lost ? FI_RSTREAM_LOST : 0) |
                   (link_.anything_unacknowledged() ? FI_RSTREAM_UNACKED : 0) | (waiting() ? FI_RSTREAM_WAITING : 0) |
                   core_status_flags(properties_);
    status.readable = link_.readable();
    status.writable = link_.space();
    status.unsent = link_.unreleased();
    return status;
}

int Stream::wait_fd(int& fd) {
    const std::lock_guard lock(wait_mutex_);
    if (wait_fd_.get() < 0) {
        base::Descriptor gathered(epoll_create1(EPOLL_CLOEXEC));
        base::Descriptor signal(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        if (gathered.get() < 0 || signal.get() < 0) {
            return -errno;
        }
        if (const int ret = gather_queue(gathered); ret != 0) {
            return ret;
        }
        for (const int part : {signal.get(), events_fd_, timer_fd_.get()}) {
            if (const int ret = part >= 0 ? gather(gathered, part) : 0; ret != 0) {
                return ret;
            }
        }
        wait_fd_ = std::move(gathered);
        signal_fd_ = std::move(signal);
        if (wakes_someone()) { // what came before there was a descriptor to tell it by
            const uint64_t one = 1;
            signaled_ = ::write(signal_fd_.get(), &one, sizeof(one)) == sizeof(one);
        }
    }
    fd = wait_fd_.get();
    return 0;
}

int Stream::try_wait() {
    take_core_events();
    progress();
    if (peeked_.load() != 0) {
        await_more();
    }
    if (link_.growth_wanted() && link_.readable() == 0) {
        grow_ring();
    }
    armed_.store(true); // before anything is looked at: who changes it from now on tells us
    if (link_.readable() != peeked_.load()) {
        return -FI_EAGAIN;
    }
    const bool failed = state_.load() == State::failed;
    if ((link_.peer_finished() || link_.peer_reset() || failed) && !end_told_.load()) {
        return -FI_EAGAIN;
    }
    if ((send_starved_.load() && (link_.space() != 0 || failed)) || unmap_is_over()) {
        return -FI_EAGAIN;
    }
    take_back_signal();
    if (failed) {
        return 0; // a lost connection's queue has nothing new to say
    }
    return try_wait_core();
}

} // namespace rstream
