// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The sending half of a stream. Bytes of the program are copied to the staging ring, and what the link says may go now
// is posted to the core; small bytes go straight from the program's memory where that is allowed. What cannot go yet
// stays wanted: the next call of any kind tries again, and so does the event queue, since the stream is told.
//
// Threads: any. One lock, the posting lock, makes them one posting side. A thread that only wants posted what may go
// does not wait for it, but leaves that to the thread that has it (posting_lock.hpp). `complete` is for the progress
// side, and what is const for any. The lock is not held while memory for a larger staging ring is made.
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
    // What the stream is told of, seldom, and with the posting lock held: of this part it may call what is const only.
    class Events {
      public:
        // There is something left to post for which no call of the program will come, or there no longer is.
        virtual void on_needs_progress(bool needs) = 0;
        // The core does not take a work request, and never will: FI_E*.
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

    // The staging ring may grow up to `staging_limit`; no more than its size: it does not.
    Transmit(const Parts& parts, size_t staging_limit, Events& events);

    // ---- set-up, by one thread
    // Makes the staging ring, and the list of work requests, of which `queue_size` may be with the core. 0 or
    // -FI_ENOMEM.
    int open(size_t staging_size, size_t queue_size);
    // For a core that must know memory that is sent. 0 or the core's error. `deregister`: nothing is under way.
    int register_memory() { return register_buffer(core_, staging_.current(), FI_WRITE); }
    void deregister() { staging_.deregister(); }
    // The link was opened towards what the peer offers.
    void start() BASE_EXCLUDES(posting_);
    [[nodiscard]] bool started() const { return chunk_size_.get() != 0; }

    // ---- calls of the program
    // What a send leaves to be done by its caller.
    struct Leftover {
        bool poll = false;   // enough was held back meanwhile to see whether credit has come
        bool resize = false; // the staging ring moves, or should
    };
    // The number of bytes that were taken, or why none were: -FI_EAGAIN if there is no space.
    ssize_t send(const iovec* iov, size_t count, bool more, Leftover& left) BASE_EXCLUDES(posting_);
    // The same to the peer's memory. `maps`: null if the two ends have not agreed on any.
    ssize_t write(const wire::Maps* maps, const std::byte* from, size_t length, uint64_t offset, bool more)
        BASE_EXCLUDES(posting_);
    // 0, or why nothing can be sent any more. Once the loss of a connection was reported, by whichever call, it is a
    // broken pipe.
    int error();
    // Makes a larger staging ring if there should be one, and gives back one that is no longer in use. Can block.
    void resize() BASE_EXCLUDES(posting_);
    enum class End : uint8_t {
        finish,       // behind all that was sent
        close,        // the same, and nothing will be read any more
        close_unread, // the same, and the peer is told that not all that it sent was read
        abort,        // instead of what was sent and not posted
    };
    void end(End how) BASE_EXCLUDES(posting_);

    // ---- posting for other parts
    // Posts what may go, or has it done by the thread that posts at present.
    void request_flush();
    [[nodiscard]] bool flush_wanted() const { return flush_wanted_.load(std::memory_order_acquire); }

    // ---- completions
    // Progress side. Of a work request, by its context.
    void complete(const void* context);
    [[nodiscard]] bool all_completed() const { return work_requests_.all_completed(); }
    // The core has to be called for what was sent. One whose progress is manual may hold on to what was posted; an
    // adapter needs nobody's help.
    [[nodiscard]] bool waits_for_calls() const {
        return flush_wanted() || (core_.properties().manual_progress && !work_requests_.all_completed());
    }

  private:
    // Holds the posting lock; on leaving, does what others requested meanwhile.
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

    void flush() BASE_REQUIRES(posting_); // all that may go now
    ssize_t post(const wire::Post& post) BASE_REQUIRES(posting_);
    bool send_direct(const std::optional<wire::Post>& post, const void* bytes) BASE_REQUIRES(posting_);
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
    RingBuffer staging_;   // for the posting side, but for who resizes it
    ChunkSize chunk_size_; // for the posting side, but for completions
    StagingThreshold staging_threshold_ BASE_GUARDED_BY(posting_);
    size_t unpolled_ BASE_GUARDED_BY(posting_) = 0; // bytes staged since completions were last polled for
    bool needs_progress_ BASE_GUARDED_BY(posting_) = false;
    std::atomic<bool> flush_wanted_{false}; // something could not go yet
};

} // namespace rstream
