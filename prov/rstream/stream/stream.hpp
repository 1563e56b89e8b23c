// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// One stream over one connection of a core: a wire::Link with its rings in registered memory, whose posts become writes
// and sends of the core endpoint and whose arrivals are the core's completions. It belongs to an endpoint, and outlives
// it while its last bytes are on their way.
//
// Its parts, each with its own header and test:
//   Lifecycle, ConnectRequest, Linger                 its states, how it begins and ends
//   CoreEndpoint, MessageSlots, WorkRequests          the core below
//   PostingLock                                       who posts
//   RingBuffer, ChunkSize, StagingThreshold           its memory, and larger rings for a busy stream
//   Iomap                                             memory beside the stream
//   Readiness, WaitSet                                whom to wake, and what a waiter sleeps on
//   Liveness, KernelKeepalive                         whether a silent peer is there
//
// The stream itself is in stream.cpp (opening, set-up, events), stream_close.cpp, stream_core.cpp (posting,
// completions), stream_transfer.cpp (send, receive, peek, wait), stream_resize.cpp, stream_iomap.cpp and
// stream_keepalive.cpp.
//
// Locks, in the order in which they are taken: `reading_`, the pump's, and then `posting_` or `completing_`. Those of
// the parts are leaves. None is held over a call that can block, as registering memory can. A thread that sends and one
// that receives share none of them for longer than reading completions takes.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/descriptor.hpp"
#include "base/mutex.hpp"
#include "include/rdma/fi_ext_rstream.h"
#include "prov/rstream/core/endpoint.hpp"
#include "prov/rstream/eq.hpp"
#include "prov/rstream/stream/buffer.hpp"
#include "prov/rstream/stream/chunk_size.hpp"
#include "prov/rstream/stream/connect_request.hpp"
#include "prov/rstream/stream/iomap.hpp"
#include "prov/rstream/stream/kernel_keepalive.hpp"
#include "prov/rstream/stream/lifecycle.hpp"
#include "prov/rstream/stream/linger.hpp"
#include "prov/rstream/stream/liveness.hpp"
#include "prov/rstream/stream/message_slots.hpp"
#include "prov/rstream/stream/poll_interval.hpp"
#include "prov/rstream/stream/posting_lock.hpp"
#include "prov/rstream/stream/readiness.hpp"
#include "prov/rstream/stream/ring_buffer.hpp"
#include "prov/rstream/stream/staging_threshold.hpp"
#include "prov/rstream/stream/wait_set.hpp"
#include "prov/rstream/stream/work_requests.hpp"
#include "prov/rstream/wire/link.hpp"

namespace rstream {

class Domain;

// An endpoint's settings: what was asked for before, what is in force after the connection was opened.
struct Settings {
    size_t send_buf_size = 0;
    size_t recv_buf_size = 0;
    size_t tx_size = 0;
    size_t rx_size = 0;
    size_t send_limit = 0; // up to which the send buffer may grow; no more than its size: it does not
    size_t recv_limit = 0;
    size_t maps = 0; // of the peer's that we want to be told of
    KeepaliveSettings keepalive;
};

class Stream final : public EqTarget {
  public:
    // `core_info` is that of the endpoint to make, with the core's handle if it answers a request. `subject` is the fid
    // that events are reported with.
    static int open(Domain& domain, const fi_info& core_info, EventQueue& queue, AnyFid* subject, Settings& settings,
                    std::unique_ptr<Stream>& out);
    ~Stream() override;

    int connect(const void* address, std::span<const std::byte> data);
    int accept(const wire::Hello& peer, std::span<const std::byte> data);
    int shutdown(uint64_t flags);

    // Ends both directions and waits at most `linger` until all is with the core. True if the connection is to linger
    // after that.
    bool close(std::chrono::milliseconds linger);
    [[nodiscard]] bool linger_is_over() const;

    ssize_t send(const iovec* iov, size_t count, bool more);
    ssize_t recv(const iovec* iov, size_t count);
    ssize_t peek_send();
    ssize_t peek_recv(const iovec* iov, size_t count);

    // fi_ops_rstream_map
    int map(void* buffer, size_t length, uint64_t access, uint64_t& offset);
    int unmap(const void* buffer, size_t length, bool attended);
    ssize_t write_map(const void* buffer, size_t length, uint64_t offset, bool more);

    [[nodiscard]] fi_rstream_status status() const;
    // At present: they may grow.
    [[nodiscard]] size_t send_buf_size() const { return link_.staging_size(); }
    [[nodiscard]] size_t recv_buf_size() const { return link_.ring_size(); }

    // What there is for the program: see readiness.hpp. From any thread.
    [[nodiscard]] size_t readable() const { return link_.readable(); }
    [[nodiscard]] size_t space() const { return link_.space(); }
    [[nodiscard]] bool lost() const { return lifecycle_.failed(); }
    [[nodiscard]] bool ended() const { return link_.peer_finished() || link_.peer_reset() || lost(); }
    // Someone waits for an unmap, and it is complete.
    [[nodiscard]] bool iomap_answered() const { return iomap_.answered(ended()); }
    // The core is done with all that was sent, the end of the stream included.
    [[nodiscard]] bool all_completed() const;

    int try_wait();
    // The descriptor to sleep on once try_wait has given 0; made on first use.
    int wait_fd(int& fd);
    // Sleeps until the core moves, `milliseconds` at most.
    void wait_for_core(int64_t milliseconds);

    // In force at once, or from the time on at which the connection is established.
    int set_keepalive(const KeepaliveSettings& settings);

    // Null before it is connected or accepted.
    [[nodiscard]] fid_ep* core() const { return lifecycle_.state() > State::preparing ? core_.get() : nullptr; }

    // The core has made an endpoint of the request that was accepted.
    [[nodiscard]] bool request_used() const { return core_.request_used(); }

    void progress() override;
    int arm() override;
    void on_deadline() override;
    void on_core_event(uint32_t event, const fi_eq_cm_entry& entry, std::span<const std::byte> data) override;
    void on_core_error(const fi_eq_err_entry& entry) override;

  private:
    // Holds the posting side; on leaving, does what others requested meanwhile.
    class BASE_CHECKED(scoped_lockable) Posting {
      public:
        explicit Posting(Stream& stream) BASE_CHECKED(acquire_capability(stream.posting_)) : stream_(stream) {
            stream_.posting_.lock();
        }
        Posting(const Posting&) = delete;
        Posting& operator=(const Posting&) = delete;
        ~Posting() BASE_CHECKED(release_capability()) {
            stream_.posting_.unlock([this]() BASE_REQUIRES(stream_.posting_) { stream_.flush(); });
        }

      private:
        Stream& stream_;
    };

    Stream(Domain& domain, const fi_info& core_info, EventQueue& queue, AnyFid* subject, const Settings& settings);

    // stream.cpp
    int open_queue(const fi_info& core_info, const Settings& settings);
    int open_endpoint();
    void drop_endpoint();
    void leave_watch();
    int register_buffer(RegisteredBuffer& buffer, uint64_t access);
    [[nodiscard]] wire::RemoteRing offered(const RegisteredBuffer& ring) const;
    [[nodiscard]] wire::Hello hello() const; // but for what the request knows
    // Before the stream is connected, and so before any other thread posts.
    int agree(const wire::Hello& peer) BASE_UNCHECKED;
    int request(const void* address, const wire::Hello* peer, std::span<const std::byte> data);
    void connect_again();
    void take_what_came();
    void report_shutdown();
    void fail(int error, const char* why);

    // stream_close.cpp
    bool give_up();

    // stream_core.cpp
    int post_receive(size_t slot);
    void flush() BASE_REQUIRES(posting_); // all that may go now
    void request_flush();                 // flush, or have it done by the thread that posts at present
    ssize_t post(const wire::Post& post, const void* direct) BASE_REQUIRES(posting_);
    ssize_t post_bypass(const wire::Post& post, const void* direct) BASE_REQUIRES(posting_);
    ssize_t post_write(const wire::Post& post, bool signal) BASE_REQUIRES(posting_);
    ssize_t post_header(const wire::Post& post) BASE_REQUIRES(posting_);
    template <class Message> ssize_t post_control(const Message& message, bool signal) BASE_REQUIRES(posting_);
    template <class Message>
    ssize_t post_message(const Message& message, std::byte* slot, bool signal) BASE_REQUIRES(posting_);
    enum class Drained : uint8_t { nothing, something, not_all };
    Drained drain_completions() BASE_REQUIRES(completing_);
    void drop_completions();
    void take_core_events();
    int try_wait_core();
    void on_completion(const fi_cq_data_entry& entry) BASE_REQUIRES(completing_);
    void on_completion_error() BASE_REQUIRES(completing_);
    void on_violation(const char* rule);

    // stream_transfer.cpp
    int send_error();
    [[nodiscard]] bool waiting() const; // for us to call the core, with what was sent
    // What a send leaves to be done once it no longer holds the posting side.
    struct Leftover {
        bool look = false;    // enough was held back meanwhile to see whether credit has come
        bool staging = false; // the staging ring moves, or should
    };
    ssize_t try_send(const iovec* iov, size_t count, bool more, Leftover& left);
    ssize_t recv_from_ring(const iovec* iov, size_t count, RegisteredBuffer& emptied);
    ssize_t peek_ring(const iovec* iov, size_t count);
    size_t copy_in(const iovec* iov, size_t count, bool more) BASE_REQUIRES(posting_);
    size_t copy_out(const iovec* iov, size_t count, bool take) BASE_REQUIRES(reading_);
    ssize_t readable_or_end() BASE_REQUIRES(reading_);
    void note_needs() BASE_REQUIRES(posting_);
    void await_more();
    void wake_waiters();

    // stream_resize.cpp
    void size_chunks() BASE_REQUIRES(posting_);
    [[nodiscard]] size_t staging_goal() const BASE_REQUIRES(posting_); // 0: it is large enough
    void note_held_up() BASE_REQUIRES(posting_);
    int make_buffer(size_t size, uint64_t access, bool registered, RegisteredBuffer& out);
    void resize_staging();
    void resize_ring();
    void retire_ring(RegisteredBuffer emptied);
    // stream_iomap.cpp
    ssize_t try_write_map(const void* buffer, size_t length, uint64_t offset, bool more);
    size_t copy_to_map(const void* buffer, size_t length, uint64_t offset, bool more) BASE_REQUIRES(posting_);

    // stream_keepalive.cpp
    int apply_keepalive(const KeepaliveSettings& settings);
    void close_core_on_exec(int guess);
    int apply_kernel_keepalive(const KeepaliveSettings& settings);
    int apply_own_keepalive(const KeepaliveSettings& settings);
    void check_liveness();
    void post_probe() BASE_REQUIRES(posting_);

    Domain& domain_;
    std::shared_ptr<Pump> pump_;
    EventQueue* queue_; // null once the endpoint is closed
    AnyFid* subject_;
    CoreEndpoint core_; // which drop_endpoint closes before the memory that it uses
    wire::Link link_;

    Iomap iomap_;
    RingBuffer staging_; // for the posting side
    RingBuffer ring_;    // for the reading side
    MessageSlots messages_;

    ConnectRequest request_;
    bool headers_ = false; // data is announced by messages behind the writes

    Lifecycle lifecycle_;

    PostingLock posting_;                   // the posting side of the link
    std::atomic<bool> flush_wanted_{false}; // something could not go yet
    std::optional<wire::Post>
        header_pending_ BASE_GUARDED_BY(posting_); // its write was posted, the message behind it not yet
    WorkRequests work_requests_;
    size_t unpolled_ BASE_GUARDED_BY(posting_) = 0; // bytes staged since completions were last looked at
    bool needy_ BASE_GUARDED_BY(posting_) = false;
    ChunkSize chunk_size_;
    StagingThreshold staging_threshold_ BASE_GUARDED_BY(posting_);

    base::Mutex reading_ BASE_ACQUIRED_BEFORE(completing_, posting_); // the reading side of the link
    base::Mutex completing_;                                          // the progress side of the link
    PollInterval events_interval_;

    Readiness readiness_;
    WaitSet wait_set_;

    Linger linger_;

    KeepaliveSettings keepalive_wanted_; // with the pump locked, like the next
    KeepaliveSettings keepalive_applied_;
    KernelKeepalive kernel_keepalive_; // where the core's connection is a socket of the kernel's,
    Liveness liveness_;                // and where it is not
};

} // namespace rstream
