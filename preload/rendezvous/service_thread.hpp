// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What the service's thread does: its upgrade attempts, and its event loop. service.cpp starts and ends the thread, and
// has what other threads ask of it.
#pragma once

#include <atomic>
#include <cstdint>

#include "preload/connection/connection.hpp"
#include "preload/rendezvous/agreements.hpp"
#include "preload/rendezvous/inbox.hpp"
#include "preload/rendezvous/token_index.hpp"

namespace preload::service {

// Between the thread and others.
inline constinit std::atomic<uint64_t> name{0};               // 0: there is no service
inline constinit std::atomic<int> inbox{-1};                  // a datagram socket at the name
inline constinit std::atomic<Connection*> requests{nullptr};  // the youngest first, linked by Connection::next_request
inline constinit std::atomic<bool> leaves{false};             // the thread is to end
inline constinit std::atomic<bool> any_abandoned{false};      // a connection that is being agreed on was closed
inline constinit std::atomic<uint64_t> steps_due{UINT64_MAX}; // when stream::on_time() is called

// True: it was not due before.
inline bool lower_steps_due(uint64_t due) {
    uint64_t before = steps_due.load();
    while (due < before) {
        if (steps_due.compare_exchange_weak(before, due)) {
            return true;
        }
    }
    return false;
}

class Thread {
  public:
    explicit Thread(int epoll);
    void run(); // until it is to end; may be called again, in another thread
    void close();

  private:
    void take_requests();
    bool begin_waiting(); // true: more requests may begin at once
    void read_inbox();
    unsigned read_messages();
    void attend(int fd, Connection& c) const;
    void watch_for_service(int fd, Connection& c) const;
    void on_connection(int fd);
    void take_steps(uint64_t now) const;

    const int epoll_;
    const unsigned many_messages_ = rendezvous::many_messages();
    rendezvous::TokenIndex tokens_;
    rendezvous::Agreements agreements_;
    // Requests that have not begun, oldest first, linked by Connection::next_request.
    Connection* waiting_ = nullptr;
    Connection* last_waiting_ = nullptr;
};

} // namespace preload::service
