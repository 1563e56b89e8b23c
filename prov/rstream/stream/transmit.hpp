// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The sending half of a stream. The program's bytes are copied to the staging ring, and the messages that the stream
// state allows are posted to the core; small sends are posted directly from the program's memory where that is allowed.
// Messages that cannot be posted yet stay pending: the next call of any kind retries, and so does the event dispatcher,
// since this part reports that to the stream.
//
// Threads: any. One lock, the posting lock, makes them one posting side. A thread that only requests a flush does not
// wait for it, but leaves the flush to the thread that holds the lock (posting_lock.hpp). `complete` is for the
// progress side, const methods are for any. The lock is not held while memory for a larger staging ring is allocated.
#pragma once

#include <atomic>
#include <cstddef>

#include "base/mutex.hpp"
#include "prov/rstream/core/endpoint.hpp"
#include "prov/rstream/stream/chunk_size.hpp"
#include "prov/rstream/stream/keepalive.hpp"
#include "prov/rstream/stream/lifecycle.hpp"
#include "prov/rstream/stream/lock_order.hpp"
#include "prov/rstream/stream/posting_lock.hpp"
#include "prov/rstream/stream/readiness.hpp"
#include "prov/rstream/stream/ring_buffer.hpp"
#include "prov/rstream/stream/send_queue.hpp"
#include "prov/rstream/stream/staging_threshold.hpp"
#include "prov/rstream/stream/work_requests.hpp"
#include "prov/rstream/wire/link.hpp"

namespace rstream {

class Transmit {
  public:
    // Rare reports to the stream, with the posting lock held: it may call only const methods of this part.
    class Events {
      public:
        // Something is left to post for which no call of the program will come, or no longer is.
        virtual void on_needs_progress(bool needs) = 0;
        // The core rejects a work request for good: FI_E*.
        virtual void on_post_error(int error) = 0;

      protected:
        ~Events() = default;
    };

    // The other parts that this one uses; all of them outlive it.
    struct Parts {
        CoreEndpoint& core;
        wire::Link& link; // its posting side
        MessageSlots& messages;
        Lifecycle& lifecycle;
        Readiness& readiness;
        Keepalive& keepalive;
    };

    // `staging_limit`: max size of the staging ring; no resize unless above its size.
    Transmit(const Parts& parts, size_t staging_limit, Events& events);

    // ---- set-up, by one thread
    // Allocates the staging ring and the list of work requests, max `queue_size` with the core. 0 or -FI_ENOMEM.
    int open(size_t staging_size, size_t queue_size, IdleBuffers& idle);
    void give_memory(IdleBuffers& idle) { staging_.give_memory(idle); } // nothing may be in flight
    // For a core that requires registered send buffers. 0 or the core's error. `deregister`: nothing is in flight.
    int register_memory() { return register_buffer(core_, staging_.current(), FI_WRITE); }
    void deregister() { staging_.deregister(); }
    // The stream state was opened with the peer's hello.
    void start() BASE_EXCLUDES(posting_);
    [[nodiscard]] bool started() const { return chunk_size_.get() != 0; }

    // ---- calls of the program
    // Work that a send leaves to its caller.
    struct Leftover {
        bool poll = false;   // bytes are held back, and a poll for credit pays
        bool resize = false; // a resize of the staging ring is in progress or due
    };
    // The number of bytes accepted, or an error: -FI_EAGAIN if there is no space.
    ssize_t send(const iovec* iov, size_t count, bool more, Leftover& left) BASE_EXCLUDES(posting_);
    // The same to the peer's memory. `maps`: null if the two ends have not agreed on iomaps.
    ssize_t write(const wire::Maps* maps, const std::byte* from, size_t length, uint64_t offset, bool more,
                  Leftover& left) BASE_EXCLUDES(posting_);
    // 0, or why nothing can be sent any more. After any call has reported the loss of a connection, it is -FI_EPIPE.
    int error();
    // Allocates a larger staging ring if there is no space, here and at the peer: two programs that send to each other
    // before they receive wait for nothing else. Whether there is space now. Can block.
    bool enlarge_full() BASE_EXCLUDES(posting_);
    // Allocates a larger staging ring if one is due, and releases one that is no longer in use. Can block. Whether
    // there is more space now.
    bool resize() BASE_EXCLUDES(posting_);
    // Replaces the staging ring by a smaller one, if it is empty. Can block.
    void shrink(size_t size) BASE_EXCLUDES(posting_);
    enum class End : uint8_t {
        finish,       // after all that was sent
        close,        // the same, and nothing will be read any more
        close_unread, // the same, and the peer learns that not all that it sent was read
        abort,        // instead of what was sent and not posted
    };
    void end(End how) BASE_EXCLUDES(posting_);

    // ---- posting for other parts
    // Posts pending messages, or leaves that to the thread that is posting at present.
    void request_flush();
    [[nodiscard]] bool flush_wanted() const { return flush_wanted_.load(std::memory_order_acquire); }

    // ---- completions
    // Progress side. Completes a work request, by its context.
    void complete(const void* context);
    [[nodiscard]] bool all_completed() const { return work_requests_.all_completed(); }
    // Sent data needs further calls of the core. A core with manual progress may hold on to posted work requests; an
    // adapter needs no calls.
    [[nodiscard]] bool waits_for_calls() const {
        return flush_wanted() || (core_.properties().manual_progress && !work_requests_.all_completed());
    }

  private:
    // Holds the posting lock; its destructor does the flushes that were requested meanwhile.
    class BASE_CHECKED(scoped_lockable) Posting {
      public:
        explicit Posting(Transmit& transmit) BASE_CHECKED(acquire_capability(transmit.posting_)) : transmit_(transmit) {
            transmit_.posting_.lock();
        }
        Posting(const Posting&) = delete;
        Posting& operator=(const Posting&) = delete;
        ~Posting() BASE_CHECKED(release_capability()) {
            transmit_.posting_.unlock([this]() BASE_REQUIRES(transmit_.posting_) { transmit_.flush(); });
        }

      private:
        Transmit& transmit_;
    };

    void flush() BASE_REQUIRES(posting_); // posts all that may be sent now
    ssize_t post(const wire::Post& post) BASE_REQUIRES(posting_);
    bool send_direct(const std::optional<wire::Post>& post, const void* bytes) BASE_REQUIRES(posting_);
    bool poll_pays(size_t staged) BASE_REQUIRES(posting_);
    size_t copy_in(const iovec* iov, size_t count, bool more) BASE_REQUIRES(posting_);
    size_t copy_to_map(const wire::Maps& maps, const std::byte* from, size_t length, uint64_t offset, bool more)
        BASE_REQUIRES(posting_);
    void note_needs() BASE_REQUIRES(posting_);
    void note_held_up() BASE_REQUIRES(posting_);
    void size_chunks() BASE_REQUIRES(posting_);
    [[nodiscard]] size_t staging_goal() const BASE_REQUIRES(posting_); // 0: it is large enough

    CoreEndpoint& core_;
    wire::Link& link_;
    Lifecycle& lifecycle_;
    Readiness& readiness_;
    Keepalive& keepalive_;
    Events& events_;

    PostingLock posting_ BASE_ACQUIRED_AFTER(below_receive);
    WorkRequests work_requests_; // posted to by `queue_`, completed by the progress side
    SendQueue queue_ BASE_GUARDED_BY(posting_);
    RingBuffer staging_;   // for the posting side, and for `resize`
    ChunkSize chunk_size_; // for the posting side, except completions
    StagingThreshold staging_threshold_ BASE_GUARDED_BY(posting_);
    size_t unpolled_ BASE_GUARDED_BY(posting_) = 0;   // bytes staged since the last poll
    int64_t polled_at_ BASE_GUARDED_BY(posting_) = 0; // the tick of that poll
    bool needs_progress_ BASE_GUARDED_BY(posting_) = false;
    std::atomic<bool> flush_wanted_{false}; // something could not be posted yet
};

} // namespace rstream
