// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A server's side of one connection: a state machine, driven by completions and events.
#pragma once

#include "util/rping/options.hpp"
#include "util/rping/tally.hpp"
#include "util/rping/wire.hpp"

namespace rping {

class Session {
  public:
    // When this returns, the request has been accepted; if it was rejected, this throws a Failure with the reason.
    Session(const Options& options, std::unique_ptr<util::Connection> connection, const util::Event& request);

    [[nodiscard]] util::Connection& connection() { return *connection_; }
    [[nodiscard]] const Tally& tally() const { return tally_; }
    [[nodiscard]] const std::string& peer() const { return peer_; }
    [[nodiscard]] bool closing() const { return state_ == State::closing; }
    [[nodiscard]] bool ended() const { return state_ == State::ended; }
    [[nodiscard]] util::Clock::time_point deadline() const { return deadline_; }

    void established();
    // Processes completions. A Failure ends the session.
    void progress();
    // The connection has ended, with this reason if there is one. Throws a Failure unless it ended normally.
    void lost(const std::string& reason);
    // Ends the connection from this side.
    void close();

  private:
    // The next step.
    enum class State { connecting, awaiting_ping, reading, awaiting_sink, writing, closing, ended };

    void take(const util::Completion& completion);
    void take_message(size_t length);
    void take_ping();
    util::RemoteBuffer take_advertisement();
    void go_ahead(State next);
    void debug(const std::string& line) const;

    const Options& options_;
    std::unique_ptr<util::Memory> data_; // allocated once its size is known
    std::unique_ptr<util::Memory> message_;
    std::unique_ptr<util::Memory> answer_;
    std::unique_ptr<util::Connection> connection_; // destroyed before its memory
    std::string peer_;
    bool client_is_ours_ = false;
    State state_ = State::connecting;
    Tally tally_;
    util::Clock::time_point first_{};
    util::Clock::time_point deadline_;
};

} // namespace rping
