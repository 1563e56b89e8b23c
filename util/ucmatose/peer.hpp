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

class Peer {
  public:
    // Makes the queues and posts the receives.
    Peer(const Options& options, std::unique_ptr<util::Connection> connection, size_t number);

    [[nodiscard]] util::Connection& connection() { return *connection_; }
    [[nodiscard]] bool received_all() const { return received_ == options_.count; }
    [[nodiscard]] bool sent_all() const { return sent_ == options_.count; }

    // From now on it sends; as much as its queue holds at once.
    void start_sending();
    // Takes what has completed, and goes on sending. What breaks the rules is a Failure.
    void progress();
    // For a Failure: which it is, and how far it came.
    [[nodiscard]] std::string text() const;

    bool established = false;
    bool disconnected = false;

  private:
    void take(const util::Completion& completion);
    void post_receives();
    void post_sends();

    const Options& options_;
    std::unique_ptr<util::Memory> out_;
    std::unique_ptr<util::Memory> in_;
    std::unique_ptr<util::Connection> connection_; // goes before its memory
    size_t number_;
    size_t send_depth_ = 0;
    size_t receive_depth_ = 0;
    bool sending_ = false;
    size_t posted_sends_ = 0;
    size_t posted_receives_ = 0;
    size_t sent_ = 0;
    size_t received_ = 0;
};

} // namespace ucmatose
