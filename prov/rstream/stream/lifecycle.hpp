// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The state of a stream's connection, with one table of the allowed moves. Also the error that ended the connection,
// and which of that was reported: an error by a call, the end by one event.
//
// Threads: any. A state is entered once, except `open`: a connect that could not begin can be retried.
#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>

namespace rstream {

enum class State : uint8_t {
    open,       // neither connect nor accept was called
    preparing,  // the core endpoint is being made
    connecting, // the core connects or accepts
    connected,
    refused,   // the connection attempt has failed
    abandoned, // given up by this side: a peer that still accepts is disconnected
    lost,      // the connection is over
};

namespace detail {

constexpr uint8_t states(std::initializer_list<State> set) {
    uint8_t bits = 0;
    for (const State state : set) {
        bits = static_cast<uint8_t>(bits | 1U << static_cast<uint8_t>(state));
    }
    return bits;
}

// Indexed by the present state: those that may follow.
constexpr uint8_t moves[] = {
    states({State::preparing}),                                                // open
    states({State::open, State::connecting, State::refused}),                  // preparing
    states({State::open, State::connected, State::refused, State::abandoned}), // connecting
    states({State::lost}),                                                     // connected
    states({State::abandoned}),                                                // refused: on a timeout
    states({}),                                                                // abandoned
    states({}),                                                                // lost
};

} // namespace detail

constexpr bool may_move(State from, State to) {
    return (detail::moves[static_cast<uint8_t>(from)] >> static_cast<uint8_t>(to) & 1U) != 0;
}

constexpr bool has_failed(State state) { return state >= State::refused; }
constexpr bool has_connected(State state) { return state == State::connected || state == State::lost; }
// The core may still answer a request to connect.
constexpr bool awaits_answer(State state) { return state == State::connecting || state == State::abandoned; }

class Lifecycle {
  public:
    [[nodiscard]] State state() const { return state_.load(std::memory_order_acquire); }
    [[nodiscard]] bool connected() const { return state() == State::connected; }
    // Sequentially consistent, for the final check of a waiter that has armed the wait set.
    [[nodiscard]] bool failed() const { return has_failed(state_.load()); }

    // False, and no change, if the table has no such move.
    bool move(State to) {
        State from = state();
        do {
            if (!may_move(from, to)) {
                return false;
            }
        } while (!state_.compare_exchange_weak(from, to));
        return true;
    }

    // The connection is lost, or was not established, for this reason (FI_E*). False if another came first.
    bool fail(int error) {
        int none = 0;
        if (!error_.compare_exchange_strong(none, error)) {
            return false;
        }
        return move(connected() ? State::lost : State::refused);
    }
    // The program gives up a request to connect. False if none is under way.
    bool abandon(int error) {
        if (state() != State::connecting) {
            return false;
        }
        error_.store(error);
        return move(State::abandoned);
    }
    // Why it failed; 0 if it has not, or the reason is not known.
    [[nodiscard]] int error() const { return error_.load(); }

    // ---- what was reported
    // True for the call that has to report the error; a later one has another result for a lost connection.
    bool claim_error_report() { return !error_reported_.exchange(true); }
    void on_error_reported() { error_reported_.store(true); }
    // True for the caller that has to report the end of the connection by an event.
    bool claim_end_event() { return !end_event_reported_.exchange(true); }
    // There was no connection whose end could be reported.
    void drop_end_event() { end_event_reported_.store(true); }

    // The program receives no more.
    void shut_receive() { receive_shut_.store(true); }
    [[nodiscard]] bool receive_shut() const { return receive_shut_.load(); }

  private:
    std::atomic<State> state_{State::open};
    std::atomic<int> error_{0};
    std::atomic<bool> error_reported_{false};
    std::atomic<bool> end_event_reported_{false};
    std::atomic<bool> receive_shut_{false};
};

} // namespace rstream
