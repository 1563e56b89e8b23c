// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What a program learns of one connection by its event queue: fi_cm(3). Nothing more once the endpoint is closed, which
// the connection may outlive. The event dispatcher below that queue stays for as long as the connection does.
//
// Threads: reports from any while the endpoint is open. The program's calls on an endpoint have returned before it
// closes it, and with the event dispatcher locked no other report is under way.
#pragma once

#include <memory>
#include <span>

#include "prov/rstream/eq.hpp"

namespace rstream {

class EndpointEvents {
  public:
    // `subject`: the endpoint's fid, which the events are reported with.
    EndpointEvents(EventQueue& queue, AnyFid* subject) : dispatcher_(queue.pump()), queue_(&queue), subject_(subject) {}

    [[nodiscard]] Pump& dispatcher() const { return *dispatcher_; }

    // `data`: of the peer, with its answer.
    void connected(std::span<const std::byte> data) {
        if (queue_ != nullptr) {
            queue_->push(FI_CONNECTED, subject_, nullptr, data);
        }
    }
    // There will be no connection. `error`: FI_E*; `core_error`: what the core has in its place.
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

    // The endpoint is closed, and its fid is the program's no more: what was reported and not read is dropped.
    void close() {
        const auto lock = dispatcher_->lock();
        if (queue_ != nullptr) {
            queue_->forget(subject_);
            queue_ = nullptr;
        }
    }

  private:
    std::shared_ptr<Pump> dispatcher_;
    EventQueue* queue_; // null once the endpoint is closed
    AnyFid* subject_;
};

} // namespace rstream
