// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What a socket has moved, counted in its row of the page that rsstat reads (base/stats_page.hpp). The page is made
// with the first socket. A socket for which there is no row counts in memory of its own: whoever counts does not ask.
//
// Counting takes no lock and no system call. Bytes are counted where the socket counts them for its own use anyway.
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

    // The program's name of it, a descriptor; -1: it has none yet.
    [[nodiscard]] int number() const { return number_; }
    void set_number(int fd) { number_ = fd; }
    // Sets it, and shows it if the socket is shown already: else false.
    bool move_to(int fd);
    // Shows the socket. Addresses that are not set are shown as none.
    void show(Role role, const Address& local, const Address& peer, const std::string& device);
    void set_buffers(size_t receive, size_t send);
    // The socket is closed: what it has counted is the process's. Of a listener, nothing is.
    void end();
    [[nodiscard]] int fd() const { return row_->fd.load(std::memory_order_relaxed); }

    void sent(size_t bytes) {
        row_->out.bytes.fetch_add(bytes, std::memory_order_relaxed);
        row_->out.calls.fetch_add(1, std::memory_order_relaxed);
    }
    // Two threads that receive on one stream at once may lose one of the calls.
    void received(size_t bytes) {
        row_->in.bytes.fetch_add(bytes, std::memory_order_relaxed);
        base::stats::add(row_->in.calls, 1);
    }
    void blocked() { row_->out.blocked.fetch_add(1, std::memory_order_relaxed); }
    uint64_t slept() { return row_->sleeps.fetch_add(1, std::memory_order_relaxed) + 1; } // how often so far
    void woken() { row_->in.wakeups.fetch_add(1, std::memory_order_relaxed); }

    [[nodiscard]] uint64_t bytes_sent() const { return row_->out.bytes.load(std::memory_order_relaxed); }
    [[nodiscard]] uint64_t bytes_received() const { return row_->in.bytes.load(std::memory_order_relaxed); }
    [[nodiscard]] uint64_t sends() const { return row_->out.calls.load(std::memory_order_relaxed); }

    // A thread of the process has slept, in whatever call.
    static void thread_slept(uint64_t ns);
    static void after_fork_in_child();

  private:
    std::unique_ptr<base::stats::SocketRow> own_;
    int number_ = -1; // with `shown_`, guarded by the socket's mutex
    bool shown_ = false;
    uint32_t ordinal_ = 0; // of the row, if it is the page's
    base::stats::SocketRow* row_;
};

} // namespace rsockets
