// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A socket's current connection, and its earlier ones. A call that sends or receives loads the current one once,
// without a lock, and may still use it after it was given up: so connections exist until the socket is closed. Only
// those of failed connect attempts are destroyed earlier, since a program may retry for hours.
//
// Thread safe. Its mutex is a leaf. The caller of take_failed or take_all destroys the connections without holding a
// lock: their event handlers may be running.
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

// One: Connection, or another type with `sizes`.
template <class One> class ConnectionsOf {
  public:
    using List = std::vector<std::unique_ptr<One>>;

    // Scope of a call on connections that are not established yet: they are kept while there is another such call.
    class Handling {
      public:
        explicit Handling(ConnectionsOf& all) : all_(all) { all_.handling_.fetch_add(1); }
        Handling(const Handling&) = delete;
        Handling& operator=(const Handling&) = delete;
        ~Handling() { all_.handling_.fetch_sub(1); }

      private:
        ConnectionsOf& all_;
    };

    // Null: none, or it was given up.
    [[nodiscard]] One* present() const { return present_.load(std::memory_order_acquire); }
    // In bytes, of the last connection added; SIZE_MAX before the first.
    [[nodiscard]] size_t receive_buffer() const { return receive_buffer_.load(std::memory_order_relaxed); }
    // The last connection of a socket that has been connected, even if it was given up: it exists until the socket is
    // closed. Null: there was none.
    [[nodiscard]] One* last_established() const {
        const Guard lock(mutex_);
        return any_connected_ && !all_.empty() ? all_.back().get() : nullptr;
    }

    // Makes it the current connection. Out of memory, it is left to the caller, who may hold a lock that its end needs.
    void add(std::unique_ptr<One>&& made) {
        receive_buffer_.store(made->sizes().recv_buffer, std::memory_order_relaxed);
        const Guard lock(mutex_);
        all_.push_back(std::move(made)); // first: it may throw
        present_.store(all_.back().get(), std::memory_order_release);
    }
    // The current connection is established.
    void note_connected() {
        const Guard lock(mutex_);
        any_connected_ = true;
    }
    // Returns the current connection, and leaves none.
    One* give_up() { return present_.exchange(nullptr); }

    // For a call that holds a Handling, after give_up: connections of failed attempts, unless another call may use one.
    [[nodiscard]] List take_failed() {
        const Guard lock(mutex_);
        return !any_connected_ && handling_.load() == 1 ? std::exchange(all_, List()) : List();
    }
    // For the only call on the socket, after give_up: all that no later call can reach. The last one is not among them,
    // since an unmap may use it.
    [[nodiscard]] List take_unreachable() {
        const Guard lock(mutex_);
        List gone;
        if (present() == nullptr && all_.size() > 1) {
            List kept;
            kept.push_back(nullptr); // first: it may throw
            kept.back() = std::move(all_.back());
            all_.pop_back();
            gone = std::exchange(all_, std::move(kept));
        }
        return gone;
    }
    // All, the last one at the end. No call may be using one.
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
