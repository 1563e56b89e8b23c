// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A stream endpoint of the provider's, and the short forms of its calls. The meaning of what they return is in
// fi_rstream(7): bytes, or -FI_E*, which are the system's errno values.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include <rdma/fi_ext_rstream.h>
#include <sys/uio.h>

#include "rsockets/address.hpp"
#include "rsockets/transport.hpp"

namespace rsockets {

// What an endpoint is made with, and after that, what the core left of it.
struct Sizes {
    size_t send_buffer = 0;
    size_t recv_buffer = 0;
    size_t send_queue = 0;
    size_t recv_queue = 0;
    size_t maps = 0; // of the peer's
};

// When a silent peer is asked whether it is there, and how often before it is taken for lost; see fi_rstream(7).
struct Keepalive {
    bool wanted = false; // the program has said whether; else the next three are the environment's
    size_t idle = 0;     // milliseconds; 0: never
    size_t interval = 75000;
    size_t count = 9;
    size_t user_timeout = 0; // milliseconds; 0: the provider's
};

class Connection {
  public:
    // Not yet connected. `info` may be that of a request, which the endpoint then answers. 0 or -FI_E*.
    static int open(Transport& transport, fi_info& info, EventTarget* target, const Sizes& sizes,
                    std::unique_ptr<Connection>& out);
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;
    ~Connection();

    int connect(const Address& to);
    int accept();

    ssize_t send(const iovec* iov, size_t count, bool more);
    ssize_t recv(const iovec* iov, size_t count);
    ssize_t peek(const iovec* iov, size_t count); // copies, and leaves the bytes
    ssize_t look_for_bytes() { return peek(nullptr, 0); }
    ssize_t look_for_room();
    [[nodiscard]] fi_rstream_status status() const;
    // Some of what was sent moves on only if someone calls.
    [[nodiscard]] bool needs_calls() const { return (status().flags & FI_RSTREAM_WAITING) != 0; }

    // Memory that the peer writes to, and the peer's that we write to: fi_ops_rstream_map. Errors are those of
    // riomap(3).
    int64_t map(void* buffer, size_t length, bool writable, int64_t offset);
    // -EAGAIN: the peer was asked. `attended`: the caller waits for its answer.
    int unmap(void* buffer, size_t length, bool attended);
    ssize_t write_map(const void* buffer, size_t length, int64_t offset, bool more);
    // There are some left whose memory the program may want back when the connection is closed.
    [[nodiscard]] bool has_maps() const { return maps_.load() != 0; }

    // Makes progress. True once there is nothing left that a further call would have to move.
    bool all_sent();
    // The same, and the peer has acknowledged it, the end of the stream included; or nobody is there to do so. What the
    // core has taken is lost to a peer whose core meets our closed socket before it has read (libfabric 2.2 and later).
    bool delivered();
    void wait_a_moment(); // for that: 10 ms at most

    int end_sending();
    int end_both();
    int abort();
    // Its events go nowhere from the return on.
    void forget_target();
    // How long closing may wait for what was sent.
    void set_linger(std::chrono::seconds time);
    // At any time; from then on. 0 or -FI_E*.
    int set_keepalive(const Keepalive& keepalive);

    // Whether one may sleep on the descriptor.
    bool may_sleep();
    [[nodiscard]] int wait_fd() const { return wait_fd_; }
    [[nodiscard]] bool has_kernel_ports() const { return kernel_ports_; }

    [[nodiscard]] Address name() const;
    [[nodiscard]] Address peer() const;
    [[nodiscard]] Sizes sizes() const;
    [[nodiscard]] const std::string& fabric_name() const { return transport_.name(); }
    [[nodiscard]] const std::string& device() const { return device_; } // the core and its domain: "verbs/mlx5_0"

  private:
    explicit Connection(Transport& transport) : transport_(transport) {}
    static int make(Transport& transport, fi_info& info, EventTarget* target, const Sizes& sizes,
                    std::unique_ptr<Connection>& out);
    int enable();
    void note_look();
    void look_after(size_t written);
    void note_maps(int by);

    Transport& transport_;
    base::Owned<fid_ep> ep_;
    fi_ops_rstream_map* map_ops_ = nullptr;
    std::atomic<int> maps_{0};
    std::atomic<int> looks_{0}; // for bytes, in the present turn
    std::atomic<uint32_t> turn_{0};
    std::atomic<size_t> written_{0}; // to maps, since the last look
    size_t user_timeout_ = 0;        // milliseconds, where the program does not say
    bool by_calls_ = false;          // the core moves what the peer writes to maps within calls alone
    bool kernel_ports_ = false;      // its ports are those of the kernel's TCP
    int wait_fd_ = -1;
    std::string device_;
};

} // namespace rsockets
