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

// A ring becomes so many times larger at once: few steps, none of which takes much more than is needed.
constexpr size_t resize_factor = 4;

} // namespace

void Stream::size_chunks() { link_.limit_chunks(chunk_size_.fit(link_.peer_ring().size, link_.staging_size())); }

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

size_t Stream::staging_goal() const { return staging_threshold_.goal(link_.peer_ring().size, link_.staging_size()); }

// A send found no room: for want of it at the peer, or here.
void Stream::note_held_up() {
    if (link_.held_up() && staging_goal() != 0) {
        staging_threshold_.on_stall();
    }
}

void Stream::resize_staging() {
    if (!staging_.begin_resize()) {
        return;
    }
    RegisteredBuffer emptied; // given back at the end, when nothing is locked
    size_t size = 0;
    {
        const Posting posting(*this);
        if (link_.staging_moves()) {
            if (link_.settle_staging()) {
                emptied = staging_.settle();
            }
        } else if (staging_threshold_.reached()) {
            staging_threshold_.reset();
            size = staging_goal();
        }
    }
    if (size != 0) {
        RegisteredBuffer made;
        if (make_buffer(size, FI_WRITE, core_.traits().local_mr, made) != 0) {
            return;
        }
        const Posting posting(*this);
        staging_.set_next(std::move(made));
        link_.move_staging(size);
        size_chunks();
    }
    staging_.end_resize();
}

void Stream::resize_ring() {
    if (!ring_.begin_resize()) {
        return;
    }
    if (link_.growth_wanted()) { // no other thread was quicker
        RegisteredBuffer made;
        if (make_buffer(std::min(link_.ring_size() * resize_factor, link_.ring_limit()), FI_REMOTE_WRITE, true, made) !=
            0) {
            return;
        }
        const wire::RemoteRing offer = offered(made);
        {
            const base::Guard lock(reading_);
            ring_.set_next(std::move(made));
            link_.supply(offer);
        }
        request_flush();
    }
    ring_.end_resize();
}

// The peer has said that it writes there no more, but need not keep to that: its key goes first, then the memory. A
// core may have begun to take in a write when its key was still good, so the addresses are not used again.
void Stream::retire_ring(RegisteredBuffer emptied) {
    emptied.mr.reset();
    emptied.buffer.retire();
    const base::Guard lock(reading_);
    ring_.keep_addresses(std::move(emptied.buffer));
}

} // namespace rstream
