// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// One of the connections, with its memory and the counts of what went over it.
#pragma once

#include <memory>

#include "util/common/backend.hpp"
#include "util/common/hello.hpp"
#include "util/ucmatose/options.hpp"

namespace ucmatose {

constexpr util::Magic magic{'u', 'c', 'm', 'a'};

// The server of this test sends first, which iWARP does not allow to the side that accepted: a device may take data
// that comes close behind its acceptance for a broken one. So on iWARP a client of ours says by a message of one byte
// that it is there, and a server of ours waits for it. To a client of rdma-core it can only give some time.
constexpr size_t opening_length = 1;

class Peer {
  public:
    // Makes the queues and posts the receives.
    Peer(const Options& options, std::unique_ptr<util::Connection> connection, size_t number);

    [[nodiscard]] util::Connection& connection() { return *connection_; }
    [[nodiscard]] bool received_all() const { return received_ == options_.count; }
    [[nodiscard]] bool sent_all() const { return sent_ == options_.count; }
    // Whether the peer has disconnected before all was done. The end of a connection may overtake the last
    // acknowledgements: sends that are under way are waited for, and are completed or flushed.
    [[nodiscard]] bool lost() const {
        const bool may_complete = posted_sends_ == options_.count && !flushed_;
        return disconnected && !(received_all() && (sent_all() || may_complete));
    }

    // Whether the other end is ours; known from the request on, or from the acceptance.
    void know_peer(bool ours) { ours_ = ours; }
    // The connection is there. A client may have to send first.
    void establish();
    // Whether a server may send. Not if the client is to say so, and has not yet.
    [[nodiscard]] bool ready() const { return established && (!opens() || opened_ || options_.count == 0); }
    // Whether all that can be done is to wait a while.
    [[nodiscard]] bool needs_time() const { return is_iwarp() && !ours_ && options_.count != 0; }

    // From now on it sends; as much as its queue holds at once.
    void start_sending();
    // Takes what has completed, and goes on sending. What breaks the rules is a Failure.
    void progress();
    // For a Failure: which it is, and how far it came.
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
    std::unique_ptr<util::Connection> connection_; // goes before its memory
    size_t number_;
    size_t send_depth_ = 0;
    size_t receive_depth_ = 0;
    bool ours_ = false;
    bool opened_ = false; // the opening has been sent, or received
    bool sending_ = false;
    bool flushed_ = false;     // a send will never complete
    size_t opening_sends_ = 0; // under way
    size_t posted_sends_ = 0;
    size_t posted_receives_ = 0;
    size_t sent_ = 0;
    size_t received_ = 0;
};

} // namespace ucmatose
