// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// For the service thread, which looks at connections that the program's threads may close meanwhile: what it would
// note in the state of a closed connection must not reach the next one that gets this state.
#pragma once

#include "preload/connection/state.hpp"
#include "preload/connection/table.hpp"

namespace preload {

// While it exists, the state of the connection is not recycled. On the service thread only, and one at a time.
class KeptState {
  public:
    // Empty if fd is no number of the connection any more.
    KeptState(const Connection& c, int fd) : state_(c.state.load()) {
        keep_state(state_);
        if (table::connection(fd) != &c || c.state.load() != state_) {
            keep_state(nullptr);
            state_ = nullptr;
        }
    }
    KeptState(const KeptState&) = delete;
    KeptState& operator=(const KeptState&) = delete;
    ~KeptState() {
        if (state_ != nullptr) {
            keep_state(nullptr);
        }
    }
    [[nodiscard]] ConnectionState* get() const { return state_; }
    explicit operator bool() const { return state_ != nullptr; }

  private:
    ConnectionState* state_;
};

} // namespace preload
