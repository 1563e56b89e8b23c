// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Larger rings for a busy stream whose program asked for no size. The receive ring grows when the peer has said that
// its window holds it up, and the program finds less to read than it asks for: more room would have brought it more.
// The staging ring follows the ring that it feeds. Memory is made and registered by the program's thread with no lock
// held; what comes out of use is given back likewise.
#include "prov/rstream/stream/stream.hpp"

#include <algorithm>

#include "prov/rstream/log.hpp"

namespace rstream {

namespace {

// More of one write than this gains nothing, and keeps the peer waiting for its first byte.
constexpr size_t largest_chunk = size_t{256} << 10;
// Below this the cost of a message outweighs what a third and a fourth in flight would gain.
constexpr size_t small_chunk = size_t{64} << 10;
// Where frames get lost: see late_writes.hpp.
constexpr size_t lossy_chunk = size_t{16} << 10;
// A ring becomes so many times larger at once: few steps, none of which takes much more than is needed.
constexpr size_t growth_factor = 4;

} // namespace

// Two messages at least are under way at once, and four where the buffers have room for them to be large.
void Stream::size_chunks() {
    const size_t buffer = std::min(link_.peer_ring().size, link_.staging_size());
    max_chunk_ =
        std::min({traits_.max_message, largest_chunk, std::max(buffer / 4, std::min(buffer / 2, small_chunk))});
    if (small_writes_) {
        max_chunk_ = std::min(max_chunk_, lossy_chunk);
    }
    link_.limit_chunks(max_chunk_);
}

// 0, or an error, and then nothing is left of it.
int Stream::make_buffer(size_t size, uint64_t access, bool registered, RegisteredBuffer& out) {
    RegisteredBuffer made;
    int ret = made.buffer.allocate(size);
    if (ret == 0 && registered) {
        ret = register_buffer(made, access);
    }
    if (ret != 0) {
        RSTREAM_INFO(FI_LOG_EP_DATA, "no memory for a larger buffer (%zu bytes: %s): it stays as it is\n", size,
                     fi_strerror(-ret));
        return ret;
    }
    std::swap(out, made);
    return 0;
}

// 0 if it is large enough.
size_t Stream::staging_goal() const {
    const size_t goal = std::min(send_limit_, link_.peer_ring().size);
    return goal > link_.staging_size() ? goal : 0;
}

// A send found no room: for want of it at the peer, or here.
void Stream::note_held_up() {
    if (link_.held_up() && staging_goal() != 0) {
        ++staging_stalls_;
    }
}

void Stream::grow_staging() {
    if (growing_staging_.exchange(true, std::memory_order_acq_rel)) {
        return;
    }
    RegisteredBuffer made;
    RegisteredBuffer emptied; // given back at the end, when nothing is locked
    size_t size = 0;
    {
        const Posting posting(*this);
        if (link_.staging_moves()) {
            if (link_.settle_staging()) {
                std::swap(emptied, staging_);
                std::swap(staging_, next_staging_);
            }
        } else if (staging_stalls_ >= wire::RingWish::patience) {
            staging_stalls_ = 0;
            size = staging_goal();
        }
    }
    if (size != 0) {
        if (make_buffer(size, FI_WRITE, traits_.local_mr, made) != 0) {
            return; // and nobody tries again
        }
        const Posting posting(*this);
        std::swap(next_staging_, made);
        link_.move_staging(size);
        size_chunks();
    }
    growing_staging_.store(false, std::memory_order_release);
}

void Stream::grow_ring() {
    if (growing_ring_.exchange(true, std::memory_order_acq_rel)) {
        return;
    }
    if (link_.growth_wanted()) { // no other thread was quicker
        RegisteredBuffer made;
        if (make_buffer(std::min(link_.ring_size() * growth_factor, link_.ring_limit()), FI_REMOTE_WRITE, true, made) !=
            0) {
            return; // and nobody tries again
        }
        const wire::RemoteRing ring = offered(made);
        {
            const std::lock_guard lock(rx_mutex_);
            std::swap(next_ring_, made);
            link_.supply(ring);
        }
        kick();
    }
    growing_ring_.store(false, std::memory_order_release);
}

// The peer has said that it writes there no more, but need not keep to that: its key goes first, then the memory. A
// core may have begun to take in a write when its key was still good, so the addresses are not used again.
void Stream::retire_ring(RegisteredBuffer emptied) {
    emptied.mr.reset();
    emptied.buffer.retire();
    const std::lock_guard lock(rx_mutex_);
    retired_rings_.push_back(std::move(emptied.buffer));
}

} // namespace rstream
