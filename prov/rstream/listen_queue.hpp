// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The core event queue of one listener, where connections are kernel TCP. Unauthenticated clients determine the work
// there. So each handshake is bounded between two reads (handshakes.hpp), and the queue is not read for a while when
// the core is out of fds and cannot process pending connections. The queue belongs to one listener, so it is not read
// after that listener is closed; the tcp core would still use the listener (libfabric 1.17).
//
// Called with the event dispatcher locked, except `open` and `begin`, which lock it.
#pragma once

#include <chrono>
#include <memory>

#include "prov/rstream/event_dispatcher.hpp"
#include "prov/rstream/handshakes.hpp"

namespace rstream {

class ListenQueue {
  public:
    // `handler`: the handler of the events, whose `progress` is called when there are any.
    static int open(fid_fabric* core_fabric, std::shared_ptr<EventDispatcher> dispatcher, EventHandler* handler,
                    std::chrono::milliseconds handshake_limit, size_t max_handshakes,
                    std::unique_ptr<ListenQueue>& out);
    ~ListenQueue();

    [[nodiscard]] fid_eq* core() const { return core_.get(); }

    // After fi_listen: sets close-on-exec on the listening socket and the queue's fds. Locks the event dispatcher.
    void begin();

    void progress();
    void on_deadline();
    int arm();
    // Before the listener is closed: no connection is accepted any more. Requests that have arrived are rejected, other
    // connections are shut down.
    void finish();

  private:
    ListenQueue(std::shared_ptr<EventDispatcher> dispatcher, EventHandler* handler)
        : dispatcher_(std::move(dispatcher)), handler_(handler) {}
    // The effect of a call. After an event there may be more events, which the fd need not signal.
    enum class Did : uint8_t { nothing, something, event, unknown };
    static bool is_change(Did did) { return did == Did::something || did == Did::event; }
    template <class Call> Did call_core(Call&& call);
    Did read();
    Did reset_signal();
    [[nodiscard]] bool readable() const;
    void note_deadline();
    void pause();

    std::shared_ptr<EventDispatcher> dispatcher_;
    EventHandler* handler_;
    fid_fabric* core_fabric_ = nullptr;
    Owned<fid_eq> core_;
    int fd_ = -1;
    std::unique_ptr<Handshakes> handshakes_;
    int held_fd_ = -1;     // Handshakes::held_fd, once the dispatcher watches it
    bool checked_ = false; // handshakes were checked after the last call that can accept: else the next can block
    bool signaled_ = true; // the core's fd may still signal an event that was read
    bool paused_ = false;
    bool logged_ = false; // the pause was logged since the last activity
    int vain_ = 0;        // consecutive reads that changed nothing
};

} // namespace rstream
