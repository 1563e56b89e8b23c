// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The endpoint object that a program holds: its settings before it is enabled, its connection from then on.
// fi_endpoint(3), fi_cm(3), fi_msg(3), and fi_rstream(7) for their meaning on a stream.
#pragma once

#include <memory>

#include "base/mutex.hpp"
#include "prov/rstream/request.hpp"
#include "prov/rstream/stream/stream.hpp"

namespace rstream {

class Endpoint : public fid_ep {
  public:
    static int open(Domain& domain, const fi_info& info, void* context, fid_ep** out);

    int bind(AnyFid* other, uint64_t flags);
    int control(int command, void* arg);
    int set_option(int name, const void* value, size_t length);
    int get_option(int name, void* value, size_t* length);

    int set_name(const void* addr, size_t length);
    int get_name(void* addr, size_t* length);
    int get_peer(void* addr, size_t* length);
    int connect(const void* addr, std::span<const std::byte> data);
    int accept(std::span<const std::byte> data);
    int shutdown(uint64_t flags) { return stream() != nullptr ? stream()->shutdown(flags) : -FI_ENOTCONN; }
    int try_wait() { return stream() != nullptr ? stream()->try_wait() : -FI_EOPBADSTATE; }
    int close();

    ssize_t send(const iovec* iov, size_t count, uint64_t flags);
    ssize_t recv(const iovec* iov, size_t count, uint64_t flags);

    // fi_ops_rstream_map
    int map(void* buffer, size_t length, uint64_t access, uint64_t* offset);
    int unmap(const void* buffer, size_t length, uint64_t flags);
    ssize_t write_map(const void* buffer, size_t length, uint64_t offset, uint64_t flags);

  private:
    explicit Endpoint(Domain& domain) : fid_ep{}, domain_(domain) {}
    ~Endpoint() = default;
    int enable();
    ssize_t after_call(ssize_t result) const;
    // Null until it is enabled, which another thread may be about to do.
    [[nodiscard]] Stream* stream() const { return stream_.load(std::memory_order_acquire); }

    Domain& domain_;
    Info info_; // as passed by the user
    EventQueue* queue_ = nullptr;
    base::Mutex setting_; // held while one is changed: other threads may change others
    Settings settings_;
    std::atomic<size_t> linger_;                 // milliseconds
    std::unique_ptr<ConnectionRequest> request_; // the request that this endpoint answers
    bool request_taken_ = false;                 // a core endpoint was made from it
    std::unique_ptr<Stream> connection_;         // once enabled
    std::atomic<Stream*> stream_{nullptr};       // the same, for calls
};

} // namespace rstream
