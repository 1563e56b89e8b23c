// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/ucmatose/peer.hpp"

#include <algorithm>

#include "util/common/failure.hpp"

namespace ucmatose {

using util::Access;
using util::fail;
using util::Operation;

namespace {
// More than this in flight does not help; iWARP needs a receive for every message.
constexpr size_t enough = 256;
} // namespace

Peer::Peer(const Options& options, std::unique_ptr<util::Connection> connection, size_t number)
    : options_(options), connection_(std::move(connection)), number_(number) {
    if (options.size > connection_->max_message()) {
        fail("-S {}: the largest message of this device is {}", options.size, connection_->max_message());
    }
    // One more receive than expected messages detects an extra message. On iWARP, one is for the opening message.
    const bool all = is_iwarp();
    const size_t receives = options.count + (all ? 2 : 1);
    if (all && receives > connection_->max_receives()) {
        fail("-C {}: on iWARP all messages must have a receive posted, and this device has {} at most", options.count,
             connection_->max_receives() - 2);
    }
    receive_depth_ = all ? receives : std::min({receives, connection_->max_receives(), enough});
    send_depth_ = std::max<size_t>(1, std::min({options.count, connection_->max_sends() - 1, enough}));
    connection_->make_queues({.sends = send_depth_ + 1, .receives = receive_depth_});
    if (options.count != 0) {
        out_ = connection_->allocate(options.size, Access::local);
        in_ = connection_->allocate(options.size, Access::local);
        post_receives();
    }
}

std::string Peer::text() const {
    return fmt::format("connection {} ({}): {} of {} messages sent, {} received", number_, connection_->peer(), sent_,
                       options_.count, received_);
}

void Peer::post_receives() {
    const size_t last = options_.count + (is_iwarp() ? 2 : 1);
    while (posted_receives_ - received_ < receive_depth_ && posted_receives_ < last) {
        connection_->receive(*in_, options_.size);
        ++posted_receives_;
    }
}

void Peer::post_sends() {
    while (posted_sends_ - sent_ < send_depth_ && posted_sends_ < options_.count) {
        connection_->send(*out_, options_.size);
        ++posted_sends_;
    }
}

void Peer::start_sending() {
    sending_ = true;
    if (options_.count != 0) {
        post_sends();
    }
}

void Peer::establish() {
    established = true;
    if (options_.is_client() && opens() && !opened_ && options_.count != 0) {
        opened_ = true;
        ++opening_sends_;
        connection_->send(*out_, opening_length);
    }
}

void Peer::take(const util::Completion& completion) {
    if (completion.failed) {
        if (!completion.reason.empty()) {
            fail("{}: {}", text(), completion.reason);
        }
        flushed_ = flushed_ || completion.operation == Operation::send;
        disconnected = established; // before that, an event reports the result
        return;
    }
    if (completion.operation == Operation::receive) {
        take_message(completion.length);
    } else if (opening_sends_ != 0) {
        --opening_sends_; // the opening message was the first send
    } else {
        ++sent_;
    }
}

void Peer::take_message(size_t length) {
    if (!options_.is_client() && opens() && !opened_) {
        opened_ = true;
        if (length != opening_length) {
            fail("{}: a first message of {} bytes; is the peer another version?", text(), length);
        }
        return;
    }
    if (received_ == options_.count) {
        fail("{}: one message more than agreed; give both ends the same -C", text());
    }
    if (length != options_.size) {
        fail("{}: a message of {} bytes instead of {}; give both ends the same -S", text(), length, options_.size);
    }
    ++received_;
}

void Peer::progress() {
    bool any = false;
    while (const auto completion = connection_->completion()) {
        take(*completion);
        any = true;
    }
    if (any && !disconnected && options_.count != 0) {
        post_receives();
        if (sending_) {
            post_sends();
        }
    }
}

} // namespace ucmatose
