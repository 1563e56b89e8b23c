// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A connection of the rdmacm backend: an id, its queue pair, and one completion queue.
#pragma once

#include <deque>

#include "util/rdmacm/verbs.hpp"

namespace util {

// The queue pair belongs to librdmacm, or with -q to the application.
struct QueuePairCloser {
    rdma_cm_id* id = nullptr; // null: the application's
    void operator()(ibv_qp* pair) const noexcept;
};

class RdmacmConnection final : public Connection {
  public:
    RdmacmConnection(OwnedId id, std::shared_ptr<VerbsDevice> device);
    RdmacmConnection(const RdmacmConnection&) = delete;
    RdmacmConnection& operator=(const RdmacmConnection&) = delete;
    ~RdmacmConnection() override;

    [[nodiscard]] rdma_cm_id* get() const { return id_.get(); }
    // Must be called first: the address to connect to, or that of the requester.
    void set_remote(const Address& remote, Bytes header);
    void set_requested(const rdma_conn_param& request);
    // The peer has accepted. confirm: for a queue pair of the application's own, which librdmacm does not confirm
    // itself.
    void establish(bool confirm);

    bool may_sleep() override;
    void add_to(std::vector<pollfd>& descriptors) const override;

    void make_queues(const QueueSizes& sizes) override;
    std::unique_ptr<Memory> allocate(size_t size, Access access) override;
    void receive(Memory& memory, size_t length) override;
    void send(Memory& memory, size_t length) override;
    void read(Memory& memory, size_t length, const RemoteBuffer& from) override;
    void write(Memory& memory, size_t length, const RemoteBuffer& to) override;
    std::optional<Completion> completion() override;
    void connect(std::span<const std::byte> data) override;
    void accept(std::span<const std::byte> data) override;
    void reject(std::span<const std::byte> data) override;
    void disconnect() override;
    [[nodiscard]] std::string peer() const override;
    [[nodiscard]] size_t max_message() const override { return device_->max_message(id_->port_num); }
    [[nodiscard]] size_t max_sends() const override;
    [[nodiscard]] size_t max_receives() const override;
    [[nodiscard]] bool waits_for_receives() const override { return !device_->is_iwarp(); }

  private:
    void move_own_pair(ibv_qp_state state);
    void connect_own_pair();
    void post(Operation operation, Memory& memory, size_t length, const RemoteBuffer& remote);
    void collect();
    rdma_conn_param parameters(std::span<const std::byte> data) const;

    OwnedId id_; // destroyed last
    std::shared_ptr<VerbsDevice> device_;
    OwnedCompletionChannel channel_;
    OwnedQueue queue_;
    std::unique_ptr<ibv_qp, QueuePairCloser> pair_;
    Address remote_;
    Bytes header_; // in front of the private data
    bool requested_ = false;
    bool answered_ = false;
    bool connected_ = false;
    uint8_t responder_resources_ = 1; // the peer's reads, and our own reads, that may be in flight
    uint8_t initiator_depth_ = 1;
    std::deque<Completion> completions_;
};

} // namespace util
