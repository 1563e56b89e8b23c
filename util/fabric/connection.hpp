// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A connection of the fabric backend: an endpoint, its completion queues, and memory regions.
#pragma once

#include <deque>

#include "util/fabric/fabric.hpp"

namespace util {

class FabricEvents;

class FabricMemory : public Memory {
  public:
    FabricMemory(std::shared_ptr<FabricDomain> domain, size_t size, Access access);

    [[nodiscard]] std::span<std::byte> bytes() override { return bytes_; }
    [[nodiscard]] uint64_t remote_address() const override;
    [[nodiscard]] uint64_t remote_key() const override;
    [[nodiscard]] void* descriptor() const { return region_ ? fi_mr_desc(region_.get()) : nullptr; }

  private:
    std::shared_ptr<FabricDomain> domain_;
    Bytes bytes_;
    Owned<fid_mr> region_; // empty if the core needs none
};

class FabricConnection final : public Connection {
  public:
    FabricConnection(FabricEvents& events, std::shared_ptr<FabricDomain> domain, Info info);
    FabricConnection(const FabricConnection&) = delete;
    FabricConnection& operator=(const FabricConnection&) = delete;
    ~FabricConnection() override;

    // Must be called first: the address to connect to, or that of the requester.
    void set_remote(const Address& remote) { remote_ = remote; }
    void set_listener(fid_pep* listener) { listener_ = listener; }
    void migrate(FabricEvents& events);
    // Whether connect() is still pending.
    [[nodiscard]] bool connecting() const { return connecting_; }
    void set_connecting(bool connecting) { connecting_ = connecting; }
    void note_end() { ended_ = true; }

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
    [[nodiscard]] size_t max_message() const override { return info_->ep_attr->max_msg_size; }
    [[nodiscard]] size_t max_sends() const override { return info_->tx_attr->size; }
    [[nodiscard]] size_t max_receives() const override { return info_->rx_attr->size; }
    [[nodiscard]] bool waits_for_receives() const override { return info_->ep_attr->protocol != FI_PROTO_IWARP; }

  private:
    // The context that is passed to libfabric for an operation; some cores write to it.
    struct Pending {
        fi_context2 context{};
        Operation operation = Operation::send;
    };

    void open_queue(size_t size, uint64_t flags, Owned<fid_cq>& queue);
    template <class Call> void post(const char* name, Operation operation, Call call);
    void collect();
    void collect_from(fid_cq* queue);
    Completion failure_of(fid_cq* queue);
    Pending* new_pending(Operation operation);
    std::span<const std::byte> fitting(std::span<const std::byte> data) const;

    FabricEvents* events_;
    std::shared_ptr<FabricDomain> domain_;
    Info info_;
    Address remote_;
    fid_pep* listener_ = nullptr;
    bool answered_ = false; // of a request: accepted or rejected
    bool connecting_ = false;
    bool connected_ = false;
    bool ended_ = false; // the end was read from the event queue
    Owned<fid_cq> queue_;
    Owned<fid_cq> receive_queue_; // only with a separate receive queue
    Owned<fid_ep> endpoint_;      // closed before the queues
    std::deque<Pending> pending_;
    std::vector<Pending*> free_;
    std::deque<Completion> completions_;
};

} // namespace util
