// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A thread that waits in a blocking connect dispatches the events of its transport's connections itself: each step of
// the connect would otherwise wake the service thread, and the last one this thread as well. The service thread rests
// meanwhile, as it does while data flows.
//
// One thread at a time does. It gives that up, and the service thread takes over, once too many wake-ups in a row bring
// no event: they are data of other connections then, for whose receivers it would be in the way.
#pragma once

#include <new>

#include "rsockets/service.hpp"
#include "rsockets/setup_steps.hpp"
#include "rsockets/transport.hpp"

namespace rsockets {

class SetupAttendant {
  public:
    explicit SetupAttendant(Service& service) : service_(service) {}
    SetupAttendant(const SetupAttendant&) = delete;
    SetupAttendant& operator=(const SetupAttendant&) = delete;
    ~SetupAttendant() { end(); }

    void begin(Transport& transport) {
        if (service_.attendant_begins()) {
            transport_ = &transport;
        } else {
            service_.end_rest();
        }
    }
    // Handlers are called, so no lock may be held.
    void dispatch_events() {
        if (transport_ == nullptr) {
            return;
        }
        bool goes_on = false;
        try {
            goes_on = steps_.expects_event(true, transport_->dispatch_connection_events());
        } catch (const std::bad_alloc&) { // perhaps for another connection: this one's connect has not failed
        }
        if (!goes_on) {
            end();
            service_.end_rest();
        }
    }
    // Whether the thread may sleep on `fd`.
    [[nodiscard]] bool may_sleep() { return transport_ == nullptr || transport_->may_sleep_on_connections(); }
    // -1: it does not attend.
    [[nodiscard]] int fd() const { return transport_ != nullptr ? transport_->connection_fd() : -1; }

  private:
    void end() {
        if (transport_ != nullptr) {
            transport_ = nullptr;
            service_.attendant_ends();
        }
    }

    Service& service_;
    Transport* transport_ = nullptr;
    SetupSteps steps_;
};

} // namespace rsockets
