// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Counters of a socket, in its row of the page that rsstat reads (base/stats_page.hpp). The first socket creates the
// page. A socket that gets no row counts in memory of its own, so that counting needs no check.
//
// Counting takes no lock and no system call. The number of sends serves the socket itself, too.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/stats_writer.hpp"
#include "rsockets/address.hpp"

namespace rsockets {

class Counters {
  public:
    using Role = base::stats::Role;

    Counters();
    Counters(const Counters&) = delete;
    Counters& operator=(const Counters&) = delete;
    ~Counters();

    // The socket's descriptor; -1: none yet.
    [[nodiscard]] int number() const { return number_; }
    void set_number(int fd) { number_ = fd; }
    // Sets the descriptor, and updates the row if the socket is shown already: else false.
    bool move_to(int fd);
    // Publishes the row. Addresses that are not set are shown as none.
    void show(Role role, const Address& local, const Address& peer, const std::string& device);
    void set_buffers(size_t receive, size_t send);
    // The socket is closed: adds its counts to the totals of the process, except those of a listener.
    void end();
    [[nodiscard]] int fd() const { return row_->fd.load(std::memory_order_relaxed); }

    void sent(size_t bytes) {
        row_->out.path_bytes.fetch_add(bytes, std::memory_order_relaxed);
        row_->out.path_calls.fetch_add(1, std::memory_order_relaxed);
    }
    // If two threads receive on one stream at once, one of the calls may not be counted.
    void received(size_t bytes) {
        row_->in.path_bytes.fetch_add(bytes, std::memory_order_relaxed);
        base::stats::add(row_->in.path_calls, 1);
    }
    void blocked() { row_->out.blocked.fetch_add(1, std::memory_order_relaxed); }
    uint64_t slept() { return row_->sleeps.fetch_add(1, std::memory_order_relaxed) + 1; } // returns the total
    void woken() { row_->in.wakeups.fetch_add(1, std::memory_order_relaxed); }

    [[nodiscard]] uint64_t sends() const { return row_->out.path_calls.load(std::memory_order_relaxed); }

    // Counts a sleep of a thread of the process, in any call.
    static void thread_slept(uint64_t ns);
    static void after_fork_in_child();

  private:
    std::unique_ptr<base::stats::SocketRow> own_;
    int number_ = -1; // with `shown_`, guarded by the socket's mutex
    bool shown_ = false;
    uint32_t ordinal_ = 0; // of the row, if it is in the page
    base::stats::SocketRow* row_;
};

} // namespace rsockets
