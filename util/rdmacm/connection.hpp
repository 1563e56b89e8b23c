// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A connection of the rdmacm backend: an id, its queue pair, and one completion queue.
#pragma once

#include <deque>

#include "util/rdmacm/verbs.hpp"

namespace util {

// A queue pair is librdmacm's, or with -q ours.
struct QueuePairCloser {
    rdma_cm_id* id = nullptr; // null: ours
    void operator()(ibv_qp* pair) const noexcept;
};

class RdmacmConnection final : public Connection {
  public:
    RdmacmConnection(OwnedId id, std::shared_ptr<VerbsDevice> device);
    RdmacmConnection(const RdmacmConnection&) = delete;
    RdmacmConnection& operator=(const RdmacmConnection&) = delete;
    ~RdmacmConnection() override;

    [[nodiscard]] rdma_cm_id* get() const { return id_.get(); }
    // Before anything else: what it is to connect to, or what its request asked for.
    void set_remote(const Address& remote, Bytes header);
    void set_requested(const rdma_conn_param& request);
    // The peer has accepted. confirm: of a queue pair of our own, which librdmacm leaves to us.
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

    OwnedId id_; // the last to go
    std::shared_ptr<VerbsDevice> device_;
    OwnedCompletionChannel channel_;
    OwnedQueue queue_;
    std::unique_ptr<ibv_qp, QueuePairCloser> pair_;
    Address remote_;
    Bytes header_; // in front of the private data
    bool requested_ = false;
    bool answered_ = false;
    bool connected_ = false;
    uint8_t responder_resources_ = 1; // how many reads of the peer may be under way, and how many of ours
    uint8_t initiator_depth_ = 1;
    std::deque<Completion> completions_;
};

} // namespace util
