// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The events of one connection in the program's event queue: fi_cm(3). None is reported once the endpoint is closed,
// which the connection may outlive. The event dispatcher below that queue exists as long as the connection.
//
// Threads: any thread may report while the endpoint is open. The program closes an endpoint after its calls on it have
// returned, and with the event dispatcher locked no other report is in progress.
#pragma once

#include <memory>
#include <span>

#include "prov/rstream/eq.hpp"

namespace rstream {

class EndpointEvents {
  public:
    // `subject`: the endpoint's fid, which the events carry.
    EndpointEvents(EventQueue& queue, AnyFid* subject)
        : dispatcher_(queue.dispatcher()), queue_(&queue), subject_(subject) {}

    [[nodiscard]] EventDispatcher& dispatcher() const { return *dispatcher_; }

    // `data`: from the peer's answer.
    void connected(std::span<const std::byte> data) {
        if (queue_ != nullptr) {
            queue_->push(FI_CONNECTED, subject_, nullptr, data);
        }
    }
    // The connection attempt has failed. `error`: FI_E*; `core_error`: the core's own code.
    void refused(int error, int core_error, std::span<const std::byte> data) {
        if (queue_ != nullptr) {
            fi_eq_err_entry entry{};
            entry.fid = subject_;
            entry.context = subject_->context;
            entry.err = error;
            entry.prov_errno = core_error;
            queue_->push_error(entry, data);
        }
    }
    void ended() {
        if (queue_ != nullptr) {
            queue_->push(FI_SHUTDOWN, subject_, nullptr, {});
        }
    }

    // The endpoint is closed and its fid invalid: unread events are dropped.
    void close() {
        const auto lock = dispatcher_->lock();
        if (queue_ != nullptr) {
            queue_->forget(subject_);
            queue_ = nullptr;
        }
    }

  private:
    std::shared_ptr<EventDispatcher> dispatcher_;
    EventQueue* queue_; // null once the endpoint is closed
    AnyFid* subject_;
};

} // namespace rstream
