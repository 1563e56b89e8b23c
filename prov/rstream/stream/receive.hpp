// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The receiving half of a stream. The peer writes into the receive ring, and the progress side counts the writes; here
// the program's calls copy out arrived bytes, and see the end of the stream after the last byte. A ring whose window
// blocks the peer is replaced by a larger one, unless the program set its size, and that by a smaller one when the
// stream is idle.
//
// Threads: any. One lock makes the program's calls one reading side. It is not held while memory for another ring is
// allocated or released.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/mutex.hpp"
#include "prov/rstream/core/endpoint.hpp"
#include "prov/rstream/stream/lifecycle.hpp"
#include "prov/rstream/stream/lock_order.hpp"
#include "prov/rstream/stream/readiness.hpp"
#include "prov/rstream/stream/ring_buffer.hpp"
#include "prov/rstream/wire/link.hpp"

namespace rstream {

class Receive {
  public:
    // The other parts that this one uses; all of them outlive it.
    struct Parts {
        CoreEndpoint& core;
        wire::Link& link; // its reading side
        Lifecycle& lifecycle;
        Readiness& readiness;
    };
    explicit Receive(const Parts& parts)
        : core_(parts.core), link_(parts.link), lifecycle_(parts.lifecycle), readiness_(parts.readiness) {}

    // ---- set-up, by one thread
    // 0 or -FI_ENOMEM.
    int open(size_t ring_size, IdleBuffers& idle) { return idle.allocate_cleared(ring_size, ring_.current().buffer); }
    void give_memory(IdleBuffers& idle) { ring_.give_memory(idle); } // nothing may be in flight
    // Registers the ring, which the peer writes to. 0 or the core's error. `deregister`: the core's connection is gone.
    int register_memory() { return register_buffer(core_, ring_.current(), FI_REMOTE_WRITE); }
    void deregister() { ring_.deregister(); }
    // The address, key and size of the ring, for the peer.
    [[nodiscard]] wire::RemoteRing offer() const { return offer_of(ring_.current()); }

    // ---- calls of the program: `progress` reads the core's completions. It is called if nothing is readable yet, with
    // the lock held.

    // The number of bytes consumed; 0 at the end of the stream; or an error, -FI_EAGAIN: none yet.
    template <class Progress>
    ssize_t recv(const iovec* iov, size_t count, const Progress& progress) BASE_EXCLUDES(mutex_) {
        ssize_t result = 0;
        {
            const base::Guard lock(mutex_);
            readiness_.begin_recv();
            result = available(progress);
            if (result > 0) {
                result = take(iov, count, static_cast<size_t>(result));
            }
        }
        if (link_.ring_moves()) {
            settle();
        }
        return result;
    }

    struct Peeked {
        ssize_t result;  // as of a receive, or the readable bytes if there is no buffer
        bool needs_more; // the last peek showed the same bytes, and none was consumed
    };
    // Consumes nothing.
    template <class Progress>
    Peeked peek(const iovec* iov, size_t count, const Progress& progress) BASE_EXCLUDES(mutex_) {
        const base::Guard lock(mutex_);
        const ssize_t there = available(progress);
        return there > 0 ? show(iov, count, static_cast<size_t>(there)) : Peeked{there, false};
    }

    // Allocates a larger ring if the peer has requested one. True if an offer has to be posted. Can block.
    bool grow() BASE_EXCLUDES(mutex_);
    // The same with a smaller one, if nothing is unread and the peer supports it.
    bool shrink(size_t size) BASE_EXCLUDES(mutex_);
    // Releases a ring that was read to its end and is no longer in use; `recv` does so too. Can block.
    void settle() BASE_EXCLUDES(mutex_);

  private:
    // The number of readable bytes, 0 at the end of the stream, or an error.
    template <class Progress> ssize_t available(const Progress& progress) BASE_REQUIRES(mutex_) {
        if (const State state = lifecycle_.state(); !has_connected(state)) {
            if (has_failed(state)) {
                readiness_.on_end_reported();
            }
            return -FI_ENOTCONN;
        }
        readiness_.on_poll();
        if (const ssize_t found = find(); found != -FI_EAGAIN) {
            return found;
        }
        progress(); // after a shutdown by the program too: sent data may need it
        if (const ssize_t found = find(); found != -FI_EAGAIN) {
            return found;
        }
        if (lifecycle_.receive_shut()) {
            return 0;
        }
        readiness_.on_recv_blocked();
        return -FI_EAGAIN;
    }
    ssize_t find() BASE_REQUIRES(mutex_);
    ssize_t take(const iovec* iov, size_t count, size_t there) BASE_REQUIRES(mutex_);
    Peeked show(const iovec* iov, size_t count, size_t there) BASE_REQUIRES(mutex_);
    size_t copy_out(const iovec* iov, size_t count, bool take) BASE_REQUIRES(mutex_);
    bool make_ring(size_t size, RegisteredBuffer& made) BASE_EXCLUDES(mutex_);
    void keep_addresses(Buffer retired) BASE_EXCLUDES(mutex_);
    [[nodiscard]] wire::RemoteRing offer_of(const RegisteredBuffer& ring) const;

    CoreEndpoint& core_;
    wire::Link& link_;
    Lifecycle& lifecycle_;
    Readiness& readiness_;

    base::Mutex mutex_ BASE_ACQUIRED_BEFORE(below_receive);
    RingBuffer ring_; // with the lock held, except in set-up and by the thread that resizes
};

} // namespace rstream
