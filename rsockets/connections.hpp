// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A socket's connection, and those before it. A call that sends or receives looks at the present one once, without a
// lock, and may go on with it after it was given up: so they stay until the socket is closed. Only those of attempts to
// connect that failed go before that, since a program may try for hours.
//
// Threads: any, at any time. Its lock is a leaf. Whoever takes connections out destroys them without a lock of his own:
// their events may be under way.
#pragma once

#include <atomic>
#include <cstddef>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "rsockets/connection.hpp"
#include "rsockets/mutex.hpp"

namespace rsockets {

// One: Connection, or what has its `sizes`.
template <class One> class ConnectionsOf {
  public:
    using List = std::vector<std::unique_ptr<One>>;

    // A call that handles connections which are not connected yet: they stay as long as there is another one.
    class Handling {
      public:
        explicit Handling(ConnectionsOf& all) : all_(all) { all_.handling_.fetch_add(1); }
        Handling(const Handling&) = delete;
        Handling& operator=(const Handling&) = delete;
        ~Handling() { all_.handling_.fetch_sub(1); }

      private:
        ConnectionsOf& all_;
    };

    // Null: there is none, or it was given up.
    [[nodiscard]] One* present() const { return present_.load(std::memory_order_acquire); }
    // In bytes, of the last one that was added; SIZE_MAX before the first.
    [[nodiscard]] size_t receive_buffer() const { return receive_buffer_.load(std::memory_order_relaxed); }
    // The last one, also if it was given up. Null: there was none.
    [[nodiscard]] One* last() const {
        const Guard lock(mutex_);
        return all_.empty() ? nullptr : all_.back().get();
    }

    // From here on it is the present one.
    void add(std::unique_ptr<One> made) {
        receive_buffer_.store(made->sizes().recv_buffer, std::memory_order_relaxed);
        const Guard lock(mutex_);
        present_.store(made.get(), std::memory_order_release);
        all_.push_back(std::move(made));
    }
    // The present one has come about.
    void note_connected() {
        const Guard lock(mutex_);
        any_connected_ = true;
    }
    // The present one until now.
    One* give_up() { return present_.exchange(nullptr); }

    // For a call that holds a Handling, after give_up: those of attempts that failed, where nobody else can be within a
    // call on any.
    [[nodiscard]] List take_failed() {
        const Guard lock(mutex_);
        return !any_connected_ && handling_.load() == 1 ? std::exchange(all_, List()) : List();
    }
    // All, the last one at the end: nobody is within a call on any.
    [[nodiscard]] List take_all() {
        const Guard lock(mutex_);
        present_.store(nullptr);
        return std::exchange(all_, List());
    }

  private:
    std::atomic<One*> present_{nullptr};
    std::atomic<size_t> receive_buffer_{std::numeric_limits<size_t>::max()};
    std::atomic<int> handling_{0};
    mutable Mutex mutex_;
    List all_ RSOCKET_GUARDED_BY(mutex_);
    bool any_connected_ RSOCKET_GUARDED_BY(mutex_) = false;
};

using Connections = ConnectionsOf<Connection>;

} // namespace rsockets
