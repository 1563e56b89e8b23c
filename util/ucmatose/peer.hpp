// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// One of the connections, with its memory and message counts.
#pragma once

#include <memory>

#include "util/common/backend.hpp"
#include "util/common/hello.hpp"
#include "util/ucmatose/options.hpp"

namespace ucmatose {

constexpr util::Magic magic{'u', 'c', 'm', 'a'};

// The server of this test sends first, which iWARP does not allow to the side that accepted: a device may treat data
// that arrives directly after the acceptance as a protocol error. So on iWARP a client of this package first sends a
// message of one byte, and a server of this package waits for it. With an rdma-core client it can only wait some time.
constexpr size_t opening_length = 1;

class Peer {
  public:
    // Creates the queues and posts the receives.
    Peer(const Options& options, std::unique_ptr<util::Connection> connection, size_t number);

    [[nodiscard]] util::Connection& connection() { return *connection_; }
    [[nodiscard]] bool received_all() const { return received_ == options_.count; }
    [[nodiscard]] bool sent_all() const { return sent_ == options_.count; }
    // Whether the peer has disconnected before the test was complete. The end of a connection may overtake the last
    // acknowledgements: sends in flight are waited for, and are completed or flushed.
    [[nodiscard]] bool lost() const {
        const bool may_complete = posted_sends_ == options_.count && !flushed_;
        return disconnected && !(received_all() && (sent_all() || may_complete));
    }

    // Whether the other end is of this package; known from the request on, or from the acceptance.
    void know_peer(bool ours) { ours_ = ours; }
    // The connection is established. A client may have to send first.
    void establish();
    // Whether a server may send. Not if the client has to send an opening message first, and has not done so.
    [[nodiscard]] bool ready() const { return established && (!opens() || opened_ || options_.count == 0); }
    // Whether the server can only wait for some time.
    [[nodiscard]] bool needs_time() const { return is_iwarp() && !ours_ && options_.count != 0; }

    // Starts sending; posts as many messages as the queue holds.
    void start_sending();
    // Processes completions, and continues sending. A violation of the protocol is a Failure.
    void progress();
    // For a Failure: the connection and its progress.
    [[nodiscard]] std::string text() const;

    bool established = false;
    bool disconnected = false;

  private:
    [[nodiscard]] bool is_iwarp() const { return !connection_->waits_for_receives(); }
    [[nodiscard]] bool opens() const { return is_iwarp() && ours_; }
    void take(const util::Completion& completion);
    void take_message(size_t length);
    void post_receives();
    void post_sends();

    const Options& options_;
    std::unique_ptr<util::Memory> out_;
    std::unique_ptr<util::Memory> in_;
    std::unique_ptr<util::Connection> connection_; // destroyed before its memory
    size_t number_;
    size_t send_depth_ = 0;
    size_t receive_depth_ = 0;
    bool ours_ = false;
    bool opened_ = false; // the opening message was sent, or received
    bool sending_ = false;
    bool flushed_ = false;     // a send will never complete
    size_t opening_sends_ = 0; // in flight
    size_t posted_sends_ = 0;
    size_t posted_receives_ = 0;
    size_t sent_ = 0;
    size_t received_ = 0;
};

} // namespace ucmatose
