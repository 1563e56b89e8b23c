// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The core event queue of one listener, where connections are the kernel's. It is read with care, since strangers
// decide what is to be done there: between two reads each handshake is bounded (handshakes.hpp), and when the core can
// do nothing with what waits, as it has no descriptor left, it is not read for a while. As the queue is the listener's
// own, nothing is read any more once the listener has gone; the tcp core would use it (libfabric 1.17).
//
// Called with the pump locked, opening excepted.
#pragma once

#include <chrono>
#include <memory>

#include "prov/rstream/handshakes.hpp"
#include "prov/rstream/pump.hpp"

namespace rstream {

class ListenQueue {
  public:
    // `target` is who the events are about, and given progress when there are any.
    static int open(fid_fabric* core_fabric, std::shared_ptr<Pump> pump, EqTarget* target,
                    std::chrono::milliseconds handshake_limit, size_t max_handshakes,
                    std::unique_ptr<ListenQueue>& out);
    ~ListenQueue();

    [[nodiscard]] fid_eq* core() const { return core_.get(); }

    // Once it listens: the socket, and what the queue has opened, are closed on exec. Takes the pump's lock.
    void begin();

    void progress();
    void on_deadline();
    int arm();
    // Before the listener is closed: nobody is accepted any more, and whoever was is turned down or sent away.
    void finish();

  private:
    ListenQueue(std::shared_ptr<Pump> pump, EqTarget* target) : pump_(std::move(pump)), target_(target) {}
    // What a call has changed. After an event there may be more of them, which the descriptor need not tell.
    enum class Did : uint8_t { nothing, something, event, unknown };
    static bool is_change(Did did) { return did == Did::something || did == Did::event; }
    template <class Call> Did call_core(Call&& call);
    Did read();
    Did reset_signal();
    [[nodiscard]] bool readable() const;
    void note_deadline();
    void pause();

    std::shared_ptr<Pump> pump_;
    EqTarget* target_;
    fid_fabric* core_fabric_ = nullptr;
    Owned<fid_eq> core_;
    int fd_ = -1;
    std::unique_ptr<Handshakes> handshakes_;
    int held_fd_ = -1;     // of the handshakes, once the pump watches it
    bool looked_ = false;  // at the handshakes, since the last call that could accept: else the next could block
    bool signaled_ = true; // the core's descriptor may still tell of an event that was read
    bool paused_ = false;
    bool told_ = false; // of a pause, since something last came
    int vain_ = 0;      // reads in a row that changed nothing
};

} // namespace rstream
