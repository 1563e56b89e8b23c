// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// One stream over one connection of a core: the stream state (wire::Link) with its rings in registered memory. Its
// messages become writes and sends of the core's endpoint, and the core's completions are its arrivals. A stream
// belongs to an endpoint, and outlives it while data is in flight.
//
// It owns its parts, passes the results of one part to the others, and holds the states of the connection. Each part
// has its own header, state and test:
//   Transmit, with SendQueue                          from the program's sends to the core
//   Receive                                           from arrived data to the program
//   Completions                                       from the core's completions to both
//   Iomap                                             out-of-band memory
//   Readiness, WaitSet                                when waiters wake, and the fd that they sleep on
//   Keepalive                                         whether a silent peer is alive
//   IdleTimer                                         when buffers that have grown shrink again
//   Lifecycle, ConnectRequest, EndpointEvents, Linger its states, set-up and end, and the events of these
//   CoreEndpoint, MessageSlots                        the core below
//
// The stream itself is in stream.cpp (opening, connecting, events), stream_close.cpp, stream_progress.cpp (progress,
// waiting), stream_transfer.cpp (send, receive, peek, status), stream_resize.cpp (of buffers) and stream_iomap.cpp.
//
// The stream has no lock of its own. The locks of its parts, and their order, are in lock_order.hpp.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <span>

#include "include/rdma/fi_ext_rstream.h"
#include "prov/rstream/core/endpoint.hpp"
#include "prov/rstream/eq.hpp"
#include "prov/rstream/stream/completions.hpp"
#include "prov/rstream/stream/connect_request.hpp"
#include "prov/rstream/stream/endpoint_events.hpp"
#include "prov/rstream/stream/idle_timer.hpp"
#include "prov/rstream/stream/iomap.hpp"
#include "prov/rstream/stream/keepalive.hpp"
#include "prov/rstream/stream/lifecycle.hpp"
#include "prov/rstream/stream/linger.hpp"
#include "prov/rstream/stream/message_slots.hpp"
#include "prov/rstream/stream/readiness.hpp"
#include "prov/rstream/stream/receive.hpp"
#include "prov/rstream/stream/transmit.hpp"
#include "prov/rstream/stream/wait_set.hpp"
#include "prov/rstream/wire/link.hpp"

namespace rstream {

class Domain;

// An endpoint's settings: the requested values before the connection is opened, those in effect afterwards.
struct Settings {
    size_t send_buf_size = 0;
    size_t recv_buf_size = 0;
    size_t tx_size = 0;
    size_t rx_size = 0;
    size_t send_limit = 0; // max size of the send buffer; no resize unless above its size
    size_t recv_limit = 0;
    size_t maps = 0;           // max iomaps that the peer may announce
    size_t shrink_timeout = 0; // milliseconds; 0: buffers that have grown do not shrink
    KeepaliveSettings keepalive;
};

class Stream final : public EventHandler, private Transmit::Events, private Completions::Events {
  public:
    // `core_info` is that of the core endpoint to create, with the core's handle if it answers a request. `subject` is
    // the fid that events carry.
    static int open(Domain& domain, const fi_info& core_info, EventQueue& queue, AnyFid* subject, Settings& settings,
                    std::unique_ptr<Stream>& out);
    ~Stream() override;

    int connect(const void* address, std::span<const std::byte> data);
    int accept(const wire::Hello& peer, std::span<const std::byte> data);
    int shutdown(uint64_t flags);

    // Ends both directions and waits at most `linger` until the core has completed all that was sent. True if the
    // connection must linger after that.
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
    // The present sizes: a buffer resize changes them.
    [[nodiscard]] size_t send_buf_size() const { return link_.staging_size(); }
    [[nodiscard]] size_t recv_buf_size() const { return link_.ring_size(); }

    // The `Source` of readiness.hpp. From any thread.
    [[nodiscard]] size_t readable() const { return link_.readable(); }
    [[nodiscard]] size_t space() const { return link_.space(); }
    [[nodiscard]] bool lost() const { return lifecycle_.failed(); }
    [[nodiscard]] bool ended() const { return link_.peer_finished() || link_.peer_reset() || lost(); }
    // The program waits for an unmap, and it is complete.
    [[nodiscard]] bool iomap_answered() const { return iomap_.answered(ended()); }
    // The core has completed all that was sent, the end of the stream included.
    [[nodiscard]] bool all_completed() const { return link_.end_posted() && transmit_.all_completed(); }
    [[nodiscard]] bool peer_closed() const { return link_.peer_closed(); }

    int try_wait();
    // The fd to sleep on once try_wait has returned 0; created on first use.
    int wait_fd(int& fd);
    // Sleeps until the core has a completion or event, `milliseconds` at most.
    void wait_for_core(int64_t milliseconds);

    // Takes effect at once, or when the connection is established.
    int set_keepalive(const KeepaliveSettings& settings);

    // As fi_cm(3). -FI_EOPBADSTATE before it is connected or accepted.
    int name(void* address, size_t* length) const {
        return lifecycle_.state() > State::preparing ? core_.name(address, length) : -FI_EOPBADSTATE;
    }
    int peer(void* address, size_t* length) const {
        return lifecycle_.state() > State::preparing ? core_.peer(address, length) : -FI_EOPBADSTATE;
    }

    // A core endpoint was created from the request that was accepted.
    [[nodiscard]] bool request_used() const { return core_.request_used(); }

    void progress() override;
    void advance(); // the same, and nobody is woken for what it finds
    int arm() override;
    void on_deadline() override;
    void on_core_event(uint32_t event, const fi_eq_cm_entry& entry, std::span<const std::byte> data) override;
    void on_core_error(const fi_eq_err_entry& entry) override;

  private:
    Stream(Domain& domain, const fi_info& core_info, EventQueue& queue, AnyFid* subject, const Settings& settings);

    // stream.cpp
    int open_queue(const fi_info& core_info, const Settings& settings);
    int open_endpoint();
    void drop_endpoint();
    void leave_watch();
    [[nodiscard]] wire::Hello hello() const; // except the fields that `request_` sets
    void agree(const wire::Hello& peer);
    int request(const void* address, const wire::Hello* peer, std::span<const std::byte> data);
    void connect_again();
    void close_core_on_exec(int guess);
    void fail(int error, const char* why);
    [[nodiscard]] EventDispatcher& dispatcher() const { return events_.dispatcher(); }

    // Reports of the parts.
    void on_needs_progress(bool needs) override;
    void on_post_error(int error) override;
    void on_lost(int error, const char* why) override;
    void on_violation(const char* rule) override;
    void on_peer_end() override;

    // stream_close.cpp
    bool give_up();

    // stream_progress.cpp
    void note_cause_of_wake();
    void take_core_events();
    int try_wait_core();
    void wake_waiters();
    [[nodiscard]] bool waiters_are_due() const;
    void check_liveness();
    [[nodiscard]] Keepalive::WatchTimer watch_timer();

    // stream_resize.cpp
    bool grow_staging();
    bool grow_full_staging();
    void grow_ring();
    void start_idle_timer();
    void trim_buffers();
    [[nodiscard]] bool no_buffer_can_shrink() const;
    [[nodiscard]] IdleTimer::Traffic traffic() const { return {link_.sent(), link_.received()}; }

    // stream_transfer.cpp
    void flush_control();

    Domain& domain_;
    EndpointEvents events_;
    CoreEndpoint core_; // drop_endpoint closes it before the memory that it uses
    wire::Link link_;   // its three sides belong to Transmit, Receive and Completions

    Lifecycle lifecycle_;
    ConnectRequest request_;
    Linger linger_;

    MessageSlots messages_;
    Iomap iomap_;
    Readiness readiness_;
    WaitSet wait_set_;
    std::atomic<bool> may_have_slept_{false};      // a thread, on the wait set, since it had a cause to wake up
    std::atomic<bool> woken_without_cause_{false}; // it has looked since, and found no data
    Keepalive keepalive_;
    IdleTimer idle_timer_;
    Transmit transmit_;
    Receive receive_;
    Completions completions_;
};

} // namespace rstream
