// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// For the service thread, which looks at connections that the program's threads may close meanwhile: what it would
// note for a closed connection must not reach the next one that gets its memory.
#pragma once

#include "preload/connection/connection_pool.hpp"
#include "preload/connection/state.hpp"
#include "preload/connection/table.hpp"

namespace preload {

// While it exists, neither the connection, which has this state until then, nor the state is recycled. On the service
// thread only, and one at a time.
class KeptState {
  public:
    // Empty if fd is no number of the connection any more.
    KeptState(const Connection& c, int fd) {
        keep_connection(&c);
        state_ = c.state.load();
        keep_state(state_);
        if (table::connection(fd) != &c || c.state.load() != state_) {
            release();
        }
    }
    KeptState(const KeptState&) = delete;
    KeptState& operator=(const KeptState&) = delete;
    ~KeptState() {
        if (state_ != nullptr) {
            release();
        }
    }
    [[nodiscard]] ConnectionState* get() const { return state_; }
    explicit operator bool() const { return state_ != nullptr; }

  private:
    void release() {
        keep_state(nullptr);
        keep_connection(nullptr);
        state_ = nullptr;
    }
    ConnectionState* state_ = nullptr;
};

} // namespace preload
