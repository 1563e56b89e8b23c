// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A stream endpoint of the provider, and short forms of its calls. They return bytes, or -FI_E*, which are the system's
// errno values: see fi_rstream(7).
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include <rdma/fi_ext_rstream.h>
#include <sys/uio.h>

#include "rsockets/address.hpp"
#include "rsockets/call.hpp"
#include "rsockets/transport.hpp"

namespace rsockets {

// Requested sizes of an endpoint, then those that the core granted.
struct Sizes {
    size_t send_buffer = 0;
    size_t recv_buffer = 0;
    size_t send_queue = 0;
    size_t recv_queue = 0;
    size_t maps = 0; // iomaps of the peer
};

// When a silent peer is probed, and after how many probes the connection is lost; see fi_rstream(7).
struct Keepalive {
    bool wanted = false; // the program set SO_KEEPALIVE; else the next three come from the environment
    size_t idle = 0;     // milliseconds; 0: never
    size_t interval = 75000;
    size_t count = 9;
    size_t user_timeout = 0; // milliseconds; 0: the provider's default
};

class Connection {
  public:
    // Not yet connected. With the `info` of a request, the endpoint answers that request. 0 or -FI_E*; after a failure
    // `out` is set if it has the request, which is refused with it.
    static int open(Transport& transport, fi_info& info, EventHandler* handler, const Sizes& sizes,
                    std::unique_ptr<Connection>& out);
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;
    ~Connection();

    int connect(const Address& to);
    int accept();

    ssize_t send(const iovec* iov, size_t count, bool more);
    ssize_t recv(const iovec* iov, size_t count);
    ssize_t peek(const iovec* iov, size_t count); // copies, and does not consume
    ssize_t poll_bytes() { return peek(nullptr, 0); }
    ssize_t poll_space();
    // Take what the endpoint has to do or to report, as any call in that direction does.
    void progress_receive() { peek(nullptr, 0); }
    void progress_send() { poll_space(); }
    [[nodiscard]] fi_rstream_status status() const;
    // Some sent data moves on only within further calls.
    [[nodiscard]] bool needs_calls() const { return (status().flags & FI_RSTREAM_WAITING) != 0; }

    // Iomaps of this end, and writes to those of the peer: fi_ops_rstream_map. Errors are those of riomap(3).
    int64_t map(void* buffer, size_t length, bool writable, int64_t offset);
    // -EAGAIN: the peer was asked and has not answered. `attended`: the caller waits for the answer.
    int unmap(void* buffer, size_t length, bool attended);
    ssize_t write_map(const void* buffer, size_t length, int64_t offset, bool more);
    // Iomaps are left, whose memory the program may reuse once the connection is closed.
    [[nodiscard]] bool has_maps() const { return maps_.load() != 0; }

    // Makes progress. True once no data is left for a further call to move.
    bool all_sent();
    // The same, and the peer has acknowledged it, EOF included; or the peer is gone. Data that the core has taken is
    // lost to a peer whose core meets our closed socket before it has read (libfabric 2.2 and later).
    bool delivered();
    void wait_a_moment(); // waits for delivered, 10 ms at most
    // The same for a thread of the program. -EINTR: a signal has come.
    int wait_a_moment(const HeldSignals& signals);

    void end_sending();
    void end_both();
    void abort();
    // After the return, no event handler is called.
    void forget_target();
    // How long closing may wait for sent data.
    void set_linger(std::chrono::seconds time);
    // May be called at any time, and takes effect at once. 0 or -FI_E*.
    int set_keepalive(const Keepalive& keepalive);

    // Whether a thread may sleep on `wait_fd`.
    bool may_sleep();
    [[nodiscard]] bool is(const ::fid* subject) const { return &ep_->fid == subject; }
    [[nodiscard]] int wait_fd() const { return wait_fd_; }
    [[nodiscard]] bool has_kernel_ports() const { return kernel_ports_; }

    [[nodiscard]] Address name() const;
    [[nodiscard]] Sizes sizes() const;
    [[nodiscard]] const std::string& device() const { return device_; } // core and domain: "verbs/mlx5_0"

  private:
    explicit Connection(Transport& transport) : transport_(transport) {}
    static int make(Transport& transport, fi_info& info, EventHandler* handler, const Sizes& sizes,
                    std::unique_ptr<Connection>& out);
    int enable();
    void note_poll();
    void poll_after(size_t written);
    void note_maps(int by);

    Transport& transport_;
    base::Owned<fid_ep> ep_;
    fi_ops_rstream_map* map_ops_ = nullptr;
    std::atomic<int> maps_{0};
    std::atomic<int> polls_{0}; // polls for bytes in the current turn
    std::atomic<uint32_t> turn_{0};
    std::atomic<size_t> written_{0}; // bytes written to iomaps since the last poll
    size_t user_timeout_ = 0;        // milliseconds; used if the program sets none
    bool by_calls_ = false;          // the core progresses the peer's writes to iomaps only within calls
    bool kernel_ports_ = false;      // its ports belong to the kernel's TCP
    int wait_fd_ = -1;
    std::string device_;
};

} // namespace rsockets
